"""Values and verdicts as words, the same on the screen and on the page.

Takes values and the documents of `assess`; knows neither a terminal nor HTML.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stopadvisor.assessment.recommendation import deciding_reason
from stopadvisor.rules.costs import PAPER_WEIGHTS
from stopadvisor.rules.families import FIXED_BUDGET, rule_name

__all__ = [
    "advised_otherwise",
    "advised_point",
    "beside",
    "favoured",
    "in_unit",
    "interval",
    "kind_points",
    "listed",
    "number",
    "percent",
    "plural",
    "reason",
    "risk_difference",
    "rule_headline",
    "saved",
    "share",
    "shell_quote",
]

Document = Mapping[str, Any]

_COMMON_STACK = "prefix-cache"
"""What vLLM and most servers do."""

# --- Values ---------------------------------------------------------------------------------------


def share(value: float | None) -> str:
    """A share in 0–1 as a percentage."""
    return "-" if value is None else f"{100 * value:.1f}%"


def percent(value: float | None) -> str:
    """A percentage that is one already."""
    return "-" if value is None else f"{value:.1f}%"


def in_unit(weights: Document | None) -> str:
    """The unit of a cost, where it is not the paper's."""
    unit = None if weights is None else weights["unit"]
    return "" if unit in (None, PAPER_WEIGHTS.unit) else f" ({unit})"


def number(value: float | None) -> str:
    """A threshold."""
    return "-" if value is None else f"{value:.4g}"


def interval(values: Sequence[float] | None, scale: float = 1.0) -> str:
    """The 95 % interval of percentages; of shares with scale 100."""
    if values is None:
        return ""
    return f"[{scale * values[0]:.1f}, {scale * values[1]:.1f}]"


def listed(values: Sequence[int] | Sequence[str]) -> str:
    """Numbers, or names, with commas and an "and"."""
    words = [str(value) for value in values]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def plural(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def shell_quote(path: str | Path) -> str:
    """A path as a word of a shell command."""
    return shlex.quote(str(path))


def beside(savings: Mapping[str, float | None], shown: str) -> str:
    """What the same rule saves on the stack that most people have, where another one is shown.

    Parameters
    ----------
    savings : mapping
        Net saving in percent by serving regime.
    shown : str
        The regime whose saving was said before.
    """
    other = savings.get(_COMMON_STACK)
    if shown == _COMMON_STACK or other is None:
        return ""
    return f"; under {_COMMON_STACK} {saved(other)}"


def saved(value: float) -> str:
    """A net saving, or in plain words a loss."""
    return percent(value) if value >= 0 else f"it costs {percent(-value)} more than full thinking"


# --- From an assessment ---------------------------------------------------------------------------


def rule_headline(family: str, where: str | None) -> str:
    """By which rule to stop; the paper's rules look at every checkpoint and do not say where."""
    if family == FIXED_BUDGET:
        return f"Stop everybody {where}." if where else "Stop everybody at one budget."
    return f"Stop early by {rule_name(family)}{f', probing {where}' if where else ''}."


def advised_otherwise(calibration: Document) -> bool:
    """Whether another rule was exported than `assess` had advised."""
    family = calibration["family"]
    if calibration["advised_family"] != family:
        return True
    # Every budget is one rule: calibration settles it, as it settles any threshold.
    return bool(family != FIXED_BUDGET and calibration["advised_where"] != calibration["where"])


def reason(advice: Document) -> str:
    """The reason that decided, without the name of its step."""
    found = deciding_reason(advice["policy"], advice["reasons"])
    return found.partition(": ")[2] or found


def advised_point(document: Document) -> Document | None:
    """The row of the comparison that the advice rests on."""
    for row in document["matched_risk"]:
        if row["alpha"] == document["alpha"]:
            for kind in ("learned", "scalar", "fixed_budget"):
                side = row.get(kind)
                if side and side["family"] == document["recommendation"]["family"]:
                    found: Document = side
                    return found
    return None


def kind_points(document: Document) -> list[dict[str, Any]]:
    """The best rule of each kind, the one that saves most first; none twice."""
    (row,) = document["matched_risk"]
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for kind in ("learned", "scalar", "agreement", "fixed_budget"):
        point = row[kind]
        if point is not None:
            known = (point["family"], point["where"])
            found.setdefault(known, {"kind": kind.replace("_", " "), **point})
    return sorted(found.values(), key=lambda point: -point["expected_saving_pct"])


def risk_difference(row: Document) -> str:
    """What combining the signals changes; a rule that is not feasible never stops."""
    feasible = [side for side in ("learned", "scalar") if row[side]["feasible"]]
    if len(feasible) < 2:
        return f"only the {feasible[0]} side is feasible" if feasible else "neither is feasible"
    spread = row["delta_saving_pp"]
    more = "more" if spread["median"] >= 0 else "less"
    return (
        f"combining the signals saves {abs(spread['median']):.1f} points {more} than the best one "
        f"alone, 95 % {interval(spread['ci95'])}"
    )


def favoured(predicted: str) -> str:
    """The kind of rule that a mix of questions favours."""
    return {
        "learned": "a combined signal",
        "scalar": "a single signal",
        "full-budget": "full thinking",
        "mixed": "no kind of rule",
    }[predicted]
