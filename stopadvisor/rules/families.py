"""Names of the families, and how their thresholds are shown.

Needs the standard library only, so that loading a policy stays light.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = [
    "AGREEMENT_FAMILIES",
    "FAMILIES",
    "FIXED_BUDGET",
    "LEARNED_FAMILIES",
    "RUNG_FAMILIES",
    "SCALAR_FAMILIES",
    "STOP_SCALARS",
    "display_threshold",
    "known_families",
    "rule_name",
]

SCALAR_FAMILIES = ("confidence", "entropy", "run-stability", "confidence-leap")
"""Paper, Appendix "Risk-Controlled Scalar Comparisons": the pool of BestScalar, in its order."""

AGREEMENT_FAMILIES = ("agreement", "agreement-scaled")
"""How many thinking tokens the present answer has stood; scaled: over the root of the position."""

LEARNED_FAMILIES = ("learned", "learned-keeps", "learned-text")
"""Families whose score a fitted model gives.

``learned-keeps`` is fitted on "right, or full thinking is wrong too".  ``learned-text`` is written
no more: a learned rule whose features read no log-probability is the same.
"""

STOP_SCALARS = (*SCALAR_FAMILIES, *AGREEMENT_FAMILIES, "deer")
"""Families that read probes without a fitted model; ``deer`` is confidence at markers."""

FIXED_BUDGET = "fixed-budget"
"""The family that asks no probe before it stops: its score is the number of thinking tokens."""

RUNG_FAMILIES = ("rung", "cap", "rung-agreement", "rung-confidence", "rung-learned")
"""Families that climb a ladder: their score is the number of a step on a path of thresholds."""

FAMILIES = (*LEARNED_FAMILIES, *STOP_SCALARS, FIXED_BUDGET)
"""Families a policy can stop by; the audit-only ones are never exported."""


def known_families(names: Iterable[str]) -> tuple[str, ...]:
    """The families among these that this version has; older runs may name others."""
    return tuple(name for name in names if name in (*FAMILIES, *RUNG_FAMILIES))


def display_threshold(family: str, linear: float) -> float:
    """Turn a threshold on the linear scale into the number people know.

    A probability for the learned families, a confidence for ``confidence`` and ``deer``, else the
    same number: thinking tokens for ``agreement`` and ``fixed-budget``.
    """
    if family in ("confidence", "deer"):
        return math.exp(linear)
    if family.startswith("learned"):
        small = math.exp(-abs(linear))  # never overflows, and keeps both tails exact
        return (1.0 if linear >= 0 else small) / (1.0 + small)
    return linear


def rule_name(family: str) -> str:
    """A family as one says it: stops early *by* this."""
    return _NAMES.get(family, family)


_NAMES = {
    "learned": "the learned rule",
    "learned-keeps": "the learned rule that keeps right answers",
    "learned-text": "the text-only learned rule",
    "confidence": "confidence alone",
    "entropy": "entropy alone",
    "run-stability": "run stability alone",
    "confidence-leap": "confidence leaps alone",
    "agreement": "agreement alone",
    "agreement-scaled": "agreement alone, scaled by depth",
    "deer": "confidence at markers alone",
    "fixed-budget": "a fixed budget",
    "rung": "always the same rung",
    "cap": "a cap on the cheaper replies",
    "rung-agreement": "equal answers of cheaper replies",
    "rung-confidence": "confidence of the cheaper reply",
    "rung-learned": "the learned rule over rungs",
}
