"""Recommend a kind of rule by profile, evidence, serving costs and chance of a certificate.

Each step gives its reason in one sentence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stopadvisor.assessment.choice import Choice
from stopadvisor.assessment.rated import SIMPLER_WITHIN, counted_labels, rank_of
from stopadvisor.probes.trajectories import Profile
from stopadvisor.rules.costs import LADDER
from stopadvisor.rules.families import rule_name
from stopadvisor.rules.outcomes import BlindStopping

__all__ = [
    "FIXED", "LABELS", "LIKELY", "PROVISIONAL", "Recommendation", "deciding_reason",
    "fit_questions_to_tell", "overthinks", "probability_words", "profile_reason", "recommend",
    "standing", "two_digits",
]  # fmt: skip

PolicyKind = Literal["learned", "scalar", "fixed-budget", "full-budget"]
_NEAR = 2.0
"""Mention a fixed budget that saves at most this many points less than the advised rule."""
LIKELY = 0.5
"""Probability from which a positive saving counts as certifiable."""
_TO_TELL = (1 + 1.282 / 1.645) ** 2
"""With this many times the questions, a one-sided 95 % lower limit that is 0 on average becomes
positive with probability 0.9 (normal approximation)."""
_MOST_TO_TELL = 10
"""No saving is expected if showing it would take more than this many times the fit questions."""
FIXED = "Fixed budget: "
"""Prefix of the reason that compares a fixed budget with the advised rule."""
LABELS = "Labels: "
"""Prefix of the reason that says what an unlikely certificate would take."""
PROVISIONAL = "Certificate: provisional; "
"""Prefix of the reason that says what calibration still has to decide."""


@dataclass(frozen=True)
class Recommendation:
    """What to run, and why."""

    policy: PolicyKind
    """`learned`, `scalar`, `fixed-budget` or `full-budget`."""
    family: str | None
    """The advised rule; null for the full budget."""
    schedule: tuple[int, ...] | None
    """Thinking tokens at which to probe; null for the full budget, or if each trace has positions
    of its own."""
    where: str | None
    """The same in words; null for the full budget."""
    serving: str
    """The serving regime for which it was chosen."""
    reasons: tuple[str, ...]
    """Why, step by step."""


def deciding_reason(policy: str, reasons: Sequence[str]) -> str:
    """The decisive reason: the last step for full thinking, the evidence otherwise."""
    if policy == "full-budget":
        return [reason for reason in reasons if not reason.startswith((LABELS, FIXED))][-1]
    return next((r for r in reasons if r.startswith("Evidence: ")), reasons[0])


def overthinks(gained: float, lost: float) -> bool:
    """Whether stopping turns significantly more questions right than wrong.

    The lead must exceed two standard deviations of fair coins, one per question that changes sides.
    """
    return gained - lost > 2 * math.sqrt(gained + lost)


def fit_questions_to_tell(saving: float, lower: float, n_fit: int) -> int | None:
    """Number of fit questions that would show a saving with probability 0.9, if `n_fit` do not.

    `saving` and its one-sided 95 % lower limit `lower` are percentages; the distance between them
    falls as 1 / sqrt(n).  None if the limit is positive, if no saving is expected, or if it would
    take more than ten times as many.
    """
    if lower > 0 or round(saving, 1) <= 0:
        return None
    times = _TO_TELL * ((saving - lower) / saving) ** 2
    if times > _MOST_TO_TELL:
        return None
    return math.ceil(times * n_fit)


def two_digits(n: int) -> int:
    """Round up to two significant digits."""
    unit: int = 10 ** max(len(str(n)) - 2, 0)
    return -(-n // unit) * unit


def _percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %"


def probability_words(probability: float) -> str:
    """An estimated probability as a percentage, never 0 % or 100 %."""
    if probability >= 0.9995:
        return "> 99.9 %"
    return "< 0.1 %" if probability < 0.0005 else _percent(probability)


def profile_reason(profile: Profile) -> str:
    """Say which kind of rule the mix of questions favours, and why."""
    shares = {name: _percent(share.share) for name, share in profile.shares.items()}
    why = {
        "full-budget": f"the mix of questions favours full thinking: {shares['unsolved']} are "
        "never solved, so there is little to save, and much to lose on the rest",
        "scalar": f"the mix of questions favours a single signal: {shares['early_solved']} are "
        f"solved from the start and only {shares['oscillating']} change sides again and again",
        "learned": "the mix of questions favours a combined signal: "
        f"{shares['oscillating']} change sides again and again, {shares['early_solved']} are "
        "solved from the start",
        "mixed": "the mix of questions favours no kind of rule: "
        f"{shares['early_solved']} are solved from the start, {shares['oscillating']} change "
        "sides again and again",
    }[profile.predicted]
    return f"Profile: {why}."


def _labels_reason(choice: Choice) -> str:
    settings = choice.settings
    # With fewer, nothing can be certified even if none is lost.
    fewest = counted_labels(settings, settings.delta, 0.0) or 0
    plan = f"`stopadvisor plan --alpha {settings.alpha:g}` says how many it takes"
    if choice.n_calibration < fewest:
        return (
            f"{LABELS}{choice.n_calibration} calibration questions cannot certify a loss of at "
            f"most {_percent(settings.alpha)}: that takes {fewest}, none of them lost; {plan}."
        )
    return f"{LABELS}with more calibration questions a larger share may be lost; {plan}."


def recommend(
    profile: Profile, choice: Choice, blind: BlindStopping | None = None
) -> Recommendation:
    """Recommendation of the deploy protocol, from fit questions alone.

    `blind` compares the advised rule with random stopping.  If the rule is no better and loses more
    than alpha of the questions that full thinking gets right, a profile that predicts full thinking
    prevails; None skips this test.

    Departs from the paper's decision procedure (Section "Discussion and Limitations"): if evidence
    contradicts the profile, evidence wins.
    """
    settings = choice.settings
    reasons = [profile_reason(profile)]

    def full_budget(reason: str, *more: str) -> Recommendation:
        reasons.extend((reason, *more))
        return Recommendation("full-budget", None, None, None, settings.serving, tuple(reasons))

    advised = choice.advised
    if choice.nothing is not None:
        return full_budget(f"Evidence: {choice.nothing}.")
    if advised is None:
        return full_budget(
            f"Evidence: with {choice.n_calibration} calibration questions no rule can be expected "
            f"to be certified for a loss of at most {_percent(settings.alpha)}.",
            _labels_reason(choice),
        )
    kinds: tuple[PolicyKind, ...] = ("fixed-budget", "scalar", "learned")
    kind = kinds[rank_of(advised.scorer.family)]
    reasons.append(_evidence_reason(profile, choice, kind))
    if fixed := _fixed_budget_reason(choice):
        reasons.append(fixed)
    point = choice.advised_point
    # These are set whenever a sequence is advised.
    assert point is not None
    assert point.fit_total_saving_pct is not None
    assert choice.saving_lower is not None
    saving, lower = point.fit_total_saving_pct, choice.saving_lower
    climbs = settings.serving == LADDER
    does = "climbing the ladder" if climbs else f"under {settings.serving} stopping"
    if lower <= 0:
        expected = (
            f"is expected to save {saving:.1f} % and may save nothing (one-sided 95 % lower limit "
            f"{lower:.1f} %)"
            if saving > 0
            else f"would cost about {-saving:.1f} % more"
        )
        if round(saving, 1) == 0:
            expected = "would save nothing"
        it = "probing" if rank_of(point.family) and not climbs else "it"
        so = f"{it} is not worth it"
        n_fit = int((choice.fit.table.samples == 0).sum())  # questions, not their traces
        if enough := fit_questions_to_tell(saving, lower, n_fit):
            so = (
                f"{n_fit} fit questions are too few to tell, about {two_digits(enough):,} "
                "would be enough"
            )
        return full_budget(f"Serving: {does} {expected}: {so}.")
    reasons.append(
        f"Serving: {does} is expected to save "
        f"{saving:.1f} % of the cost, at least {lower:.1f} % (one-sided 95 %)."
    )
    if profile.predicted == "full-budget":
        if choice.probability < LIKELY:
            return full_budget(
                f"Certificate: the probability that calibration certifies a saving is only "
                f"{probability_words(choice.probability)}, so the profile's advice stands.",
                _labels_reason(choice),
            )
        solved = choice.full_accuracy * choice.n_fit
        # A few losses are harmless, even if random stopping would lose no more.
        if blind is not None and not blind.informed and blind.losses > settings.alpha * solved:
            return full_budget(
                f"Evidence: {point.family} loses {blind.losses} of {choice.n_fit} fit questions, "
                f"{_percent(blind.losses / solved, 0)} of those that full thinking gets right, and "
                f"stopping as many at random would lose {blind.blind_losses:.1f}: it saves by "
                "giving up, not by knowing where to stop, so the profile's advice stands."
            )
        reasons.append(
            "The mix of questions alone favours full thinking; a saving that can be certified "
            "overrides it."
        )
    reasons.append(
        f"{PROVISIONAL}with {choice.n_calibration} calibration questions the probability "
        f"of certifying a saving at a loss of at most {_percent(settings.alpha)} is "
        f"{probability_words(choice.probability)}. "
        "`stopadvisor calibrate` decides."
    )
    if choice.probability < LIKELY:
        reasons.append(_labels_reason(choice))
    return Recommendation(
        kind, point.family, point.schedule, point.where, settings.serving, tuple(reasons)
    )


def _evidence_reason(profile: Profile, choice: Choice, kind: PolicyKind) -> str:
    """Say what each kind of rule is expected to save, and which one is taken."""
    points = {
        "learned": choice.comparison.learned,
        "scalar": choice.comparison.scalar,
        "fixed-budget": choice.comparison.fixed_budget,
    }
    found = {name: point for name, point in points.items() if point is not None}
    expected = ", ".join(
        f"{point.expected_saving_pct:.1f} % by {rule_name(point.family)}"
        for point in sorted(found.values(), key=lambda p: -p.expected_saving_pct)
    )
    advised = choice.advised_point
    assert advised is not None
    savings = {point.family: point.expected_saving_pct for point in found.values()}
    because = {
        "most": "",
        "simplest": f", the simplest within about {SIMPLER_WITHIN:g} point of the best",
        "overall": " for what it saves over several limits of loss near this one, because at one "
        "alone a few questions decide",
        "surer": ", because the learned rule is ahead by less than the noise of choosing it",
    }[standing(savings, advised.family)]
    text = (
        f"Evidence: at the same risk calibration is expected to certify savings of {expected}; "
        f"{rule_name(advised.family)} is taken{because}"
    )
    if profile.predicted in ("learned", "scalar") and profile.predicted != kind:
        return f"{text}, whatever the mix of questions favours."
    return f"{text}."


def standing(
    savings: Mapping[str, float], advised: str
) -> Literal["most", "simplest", "surer", "overall"]:
    """Why the advised rule is taken, given the expected savings of the best of each kind.

    ``overall``: another rule leads at the alpha asked for, but this one leads over several limits
    of loss, by which rules are chosen.  ``surer``: a learned rule leads, but by less than the noise
    of choosing it.
    """
    best = max(savings, key=savings.__getitem__)
    if advised == best:
        return "most"
    near = [f for f, saving in savings.items() if saving >= savings[best] - SIMPLER_WITHIN]
    if advised in near and rank_of(advised) == min(map(rank_of, near)):
        return "simplest"
    return "surer" if rank_of(best) == 2 else "overall"


def _fixed_budget_reason(choice: Choice) -> str | None:
    """Compare a fixed budget with the advised rule; None if it saves far less."""
    fixed, advised = choice.comparison.fixed_budget, choice.advised_point
    if fixed is None or advised is None or fixed.threshold is None or fixed.family == "rung":
        return None
    savings = [point.fit_total_saving_pct for point in (advised, fixed)]
    # Compare the figures as rounded on screen.
    ours, its = (round(saving, 1) for saving in savings if saving is not None)
    if rank_of(advised.family) == 0 or ours - its > _NEAR or its <= 0:
        return None
    amount = f"{ours - its:.1f} points less"
    if its >= ours:
        more = "as much" if its == ours else f"{its - ours:.1f} points more"
        amount = f"{more} on fit questions; calibration is expected to certify less of it"
    return (
        f"{FIXED}stopping everybody at {fixed.threshold:g} thinking tokens needs no probe at all "
        f"and saves {its:.1f} %, {amount}."
    )
