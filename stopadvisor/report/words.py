"""Figures, rules and serving stacks in words, the same on every sheet."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from stopadvisor.assessment.assessed import AssessedRun
from stopadvisor.assessment.choice import FitComparison, FitRule
from stopadvisor.assessment.recommendation import deciding_reason, standing
from stopadvisor.paper.analysis import Assessed, AssessedByPaper
from stopadvisor.paper.protocol import MatchedRisk, PaperRule
from stopadvisor.rules.costs import MONEY, PAPER_WEIGHTS, SECONDS
from stopadvisor.rules.families import (
    AGREEMENT_FAMILIES,
    FIXED_BUDGET,
    LEARNED_FAMILIES,
    RUNG_FAMILIES,
    SCALAR_FAMILIES,
    rule_name,
)

__all__ = [
    "COMMON_STACK", "KINDS_OF_QUESTION", "advised_rule", "alpha_of", "bracketed",
    "by_load", "computed_for", "cost_noun", "explained", "kind_of_rule", "kind_rules", "listed",
    "number", "on_stack", "percent", "plural", "points", "risk_difference", "rule_headline",
    "share", "shell_quote", "whole_percent", "why",
]  # fmt: skip

COMMON_STACK = "prefix-cache"
"""The stack of vLLM and most other servers behind an HTTP API."""
_ON_STACK = {
    "vllm": " inside vLLM",
    "kv-fork": " under kv-fork",
    "prefix-cache": " on vLLM's prefix cache",
    "black-box": " at a server without a cache",
    "ladder": " by climbing the ladder",
}
_STACKS = {
    "vllm": "the policy runs inside vLLM: thinking streams on while a probe runs, and tokens after "
    "a stop are wasted",
    "kv-fork": "a decoding loop of your own that can fork its cache (not vLLM)",
    "prefix-cache": "a probe is a separate request that reads the thinking so far from the "
    "server's prefix cache, as in vLLM",
    "black-box": "nothing is cached: a probe pays again for all the thinking so far",
    "ladder": "whole replies of several rungs, each paid for at its own price",
}
_NOUNS = {PAPER_WEIGHTS.unit: "the tokens", MONEY: "the price", SECONDS: "the capacity"}

KINDS_OF_QUESTION = {
    "early_solved": "right from the first answer on",
    "beneficial": "wrong at first, right for good",
    "harmful": "right once, wrong at the end",
    "unsolved": "never right",
    "oscillating": "right and wrong by turns",
}
"""Descriptions by name in a profile."""
_TRAINED = "a trained score of the trial answer passes its threshold"
"""For all other families."""
_STANDS = "a trial answer has stayed the same for long enough"
_SURE = "the model is confident enough of a trial answer"
_STOPS_WHEN = {
    "learned-keeps": "the signals of a trial answer together say that thinking on gains nothing",
    "confidence": _SURE,
    "deer": _SURE,
    "entropy": "the model wavers little enough over a trial answer",
    "run-stability": "a trial answer has come often enough in a row",
    "confidence-leap": "the model's confidence in a trial answer leaps up",
    "agreement": _STANDS,
    "agreement-scaled": _STANDS,
}
_KINDS = {
    "signals combined": LEARNED_FAMILIES,
    "equal answers": (*AGREEMENT_FAMILIES, "run-stability"),
    "one signal": (*SCALAR_FAMILIES, "deer"),
}

# --- Values ---------------------------------------------------------------------------------------


def share(value: float | None) -> str:
    """Format a share between 0 and 1 as a percentage."""
    return "-" if value is None else f"{100 * value:.1f}%"


def percent(value: float | None) -> str:
    """Format a percentage."""
    return "-" if value is None else f"{round(value, 1) + 0.0:.1f}%"  # never -0.0


def number(value: float | None) -> str:
    """Format a threshold."""
    return "-" if value is None else f"{value:.4g}"


def bracketed(values: Sequence[float] | None, scale: float = 1.0) -> str:
    """Format an interval of percentages, or of shares with a `scale` of 100."""
    if values is None:
        return ""
    return f"[{scale * values[0]:.1f}, {scale * values[1]:.1f}]"


BRACKETS = ("[ ]", "95 % interval")
"""The fact that explains the brackets of `bracketed`."""


def listed(values: Sequence[int] | Sequence[str]) -> str:
    """Join numbers or names by commas and "and"."""
    words = [str(value) for value in values]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def plural(count: int, noun: str) -> str:
    """Format a count with its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def shell_quote(path: str | Path) -> str:
    """Quote a path for a shell command."""
    return shlex.quote(str(path))


def points(value: float) -> str:
    """Format percentage points."""
    return "1 point" if round(value, 1) == 1 else f"{value:.1f} points"


def whole_percent(value: float) -> str:
    """Format a percentage without decimals, or with one below 1 %."""
    return f"{value:.0f}%" if abs(value) >= 1 else f"{value:.1f}%"


def cost_noun(unit: str | None) -> str:
    """Return the noun for costs in a unit; None means the paper's tokens."""
    return _NOUNS.get(unit or PAPER_WEIGHTS.unit, f"the cost ({unit})")


def on_stack(stack: str) -> str:
    """Name a stack as the end of a clause."""
    return _ON_STACK.get(stack, "")


def computed_for(run: AssessedRun) -> str:
    """Say where prices come from, as the end of a clause; nothing if they were given."""
    weights, prices = run.settings.weights, run.serving.prices
    if prices.source not in ("measured", "roofline"):
        return ""
    of = [f"{p / prices.decoded:.2g}" for p in (prices.prefilled, prices.cached, prices.request)]
    whose = f"prices measured for {weights.model or 'this server'}"
    at, most = "", ""
    if prices.source == "roofline":
        whose = f"prices computed for {weights.model} on {prices.gpu}"
        at, most = f" at {weights.context:.0f} tokens", " (at most)"
    if prices.in_flight:
        whose += f", {prices.in_flight} requests in flight{at}"
    return (
        f"; {whose}: in decoded tokens of {1000 * prices.decoded:.2g} ms a prefilled token is "
        f"{of[0]}{most}, a cached one {of[1]}, a request {of[2]}"
    )


def by_load(run: AssessedRun) -> str:
    """List the saving by requests in flight; empty where it is unknown."""
    return ", ".join(
        f"{percent(row.saving_pct)} at {row.in_flight}" for row in run.serving.by_load or ()
    )


def explained(stack: str) -> str:
    """Name a serving stack and say what a probe costs there."""
    return f"{stack}: {_STACKS[stack]}" if stack in _STACKS else stack


# --- From an assessment ---------------------------------------------------------------------------


def rule_headline(family: str, where: str | None) -> str:
    """Say when a rule stops; `where` is None for the paper's rules, which probe everywhere."""
    if family in RUNG_FAMILIES:
        return f"Serve {where} (rule: {family})."
    if family == FIXED_BUDGET:
        return f"Stop every question {where}." if where else "Stop every question at one budget."
    ask = f"; ask for one {where}" if where else ""
    return f"Stop early when {_STOPS_WHEN.get(family, _TRAINED)} (rule: {family}){ask}."


def kind_of_rule(family: str) -> str:
    """Name a rule of a table with its kind."""
    for kind, families in _KINDS.items():
        if family in families:
            return f"{kind} ({family})"
    return family.replace("-", " ")


def why(result: Assessed) -> str:
    """Say why the advised rule was chosen, or why full thinking is advised."""
    advice = result.recommendation
    if advice.policy == "full-budget" or isinstance(result, AssessedByPaper):
        reason = deciding_reason(advice.policy, advice.reasons)
        text = reason.partition(": ")[2] or reason  # without the name of its step
        return text[0].upper() + text[1:]
    (row,) = result.matched_risk
    savings = {rule.family: rule.expected_saving_pct for rule in kind_rules(row)}
    if advice.policy == "learned" and row.verdict == "learned better" and _lead(row) > 0:
        return f"{_combined(row)}, on fit questions."
    best = rule_name(max(savings, key=savings.__getitem__))
    return {
        "most": "Of the best rules of each kind, calibration is expected to certify the largest "
        "saving with it.",
        "simplest": f"It is the simplest rule within about a point of the best, {best}.",
        "overall": "Chosen by what it saves at several limits near the one asked for; at that one "
        f"alone, where a few questions decide, {best} is ahead.",
        "surer": "A trained score is ahead on fit questions, though by less than the noise of "
        "choosing it.",
    }[standing(savings, str(advice.family))]


def alpha_of(result: Assessed) -> float:
    """Return the alpha that was asked for, else the one that `assess` proposed."""
    return result.matched_risk[0].alpha if result.alpha is None else result.alpha


def advised_rule(run: AssessedRun) -> FitRule | None:
    """Return the advised rule of the comparison; None if full thinking is advised."""
    (row,) = run.matched_risk
    kinds = (row.learned, row.scalar, row.fixed_budget)
    return next((r for r in kinds if r and r.family == run.recommendation.family), None)


def kind_rules(row: FitComparison) -> list[FitRule]:
    """Return the best rule of each kind, largest saving first."""
    return sorted(row.kinds, key=lambda rule: -rule.expected_saving_pct)


def _saving(rule: FitRule | PaperRule | None) -> float | None:
    """Return the saving as shown; None if the rule may not stop anything."""
    if rule is None or not rule.feasible:
        return None
    saving = rule.total_saving_pct if isinstance(rule, PaperRule) else rule.fit_total_saving_pct
    return None if saving is None else round(saving, 1)


def _lead(row: FitComparison | MatchedRisk) -> float:
    """Return the lead of the learned rule over the best single signal; 0 if either may not stop."""
    learned, others = _saving(row.learned), [_saving(row.scalar)]
    if isinstance(row, FitComparison):
        others.append(_saving(row.agreement))
    known = [saving for saving in others if saving is not None]
    return 0.0 if learned is None or not known else learned - max(known)


def _combined(row: FitComparison | MatchedRisk) -> str:
    """Say what combining the signals changes, where both sides may stop."""
    lead = _lead(row)
    amount = f"{points(abs(lead))} {'more' if lead >= 0 else 'less'}"
    return f"Combining the signals saves {amount} than any one of them"


def risk_difference(row: FitComparison | MatchedRisk) -> str:
    """Say what combining the signals changes, or which side may not stop at all."""
    sides = {"the signals combined": row.learned, "one signal": row.scalar}
    feasible = [name for name, rule in sides.items() if rule is not None and rule.feasible]
    if not feasible:
        return "Neither one signal nor all combined may stop anything at this risk"
    if len(feasible) < 2 or row.delta_saving_pp is None:
        return f"Only {feasible[0]} may stop anything at this risk"
    remark = "; that may be chance" if row.verdict == "comparable" else ""
    return f"{_combined(row)}, 95 % {bracketed(row.delta_saving_pp.ci95)}{remark}"
