"""Names of the families, and how their thresholds are shown.

Needs the standard library only, so that loading a policy stays light.
"""

from __future__ import annotations

import math

__all__ = ["FAMILIES", "LEARNED_FAMILIES", "SCALAR_FAMILIES", "display_threshold", "rule_name"]

SCALAR_FAMILIES = ("confidence", "entropy", "run-stability", "confidence-leap")
"""Paper, Appendix "Risk-Controlled Scalar Comparisons": the pool of BestScalar, in its order."""

LEARNED_FAMILIES = ("learned", "learned-boosted", "learned-text")
"""Families behind which a fitted model stands."""

FAMILIES = (*LEARNED_FAMILIES, *SCALAR_FAMILIES)
"""Families a policy can stop by; the audit-only ones are never exported."""


def display_threshold(family: str, linear: float) -> float:
    """Turn a threshold on the linear scale into the number people know.

    A probability for the learned families, a confidence for ``confidence``, else the same number.

    Raises
    ------
    OverflowError
        The confidence would pass all numbers.
    """
    if family == "confidence":
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
    "learned-boosted": "the boosted learned rule",
    "learned-text": "the text-only learned rule",
    "confidence": "confidence alone",
    "entropy": "entropy alone",
    "run-stability": "run stability alone",
    "confidence-leap": "confidence leaps alone",
}
