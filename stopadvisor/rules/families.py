"""Names of the rule families, and how their thresholds are shown.

Loading a policy needs this module, so it imports only the standard library.
"""

from __future__ import annotations

import math

__all__ = [
    "AGREEMENT_FAMILIES", "FAMILIES", "FIXED_BUDGET", "LEARNED_FAMILIES", "RUNG_FAMILIES",
    "SCALAR_FAMILIES", "STOP_SCALARS", "at_budget", "display_threshold", "rule_name",
]  # fmt: skip

SCALAR_FAMILIES = ("confidence", "entropy", "run-stability", "confidence-leap")
"""The pool of BestScalar, in its order (paper, Appendix "Risk-Controlled Scalar Comparisons")."""

AGREEMENT_FAMILIES = ("agreement", "agreement-scaled")
"""Thinking tokens since the answer last changed; scaled: divided by the position's square root."""

LEARNED_FAMILIES = ("learned", "learned-keeps")
"""Families scored by a fitted model.

``learned`` predicts that the reply is right, ``learned-keeps`` that stopping loses nothing.
"""

STOP_SCALARS = (*SCALAR_FAMILIES, *AGREEMENT_FAMILIES, "deer")
"""Families that score probes without a fitted model; ``deer`` is confidence at markers."""

FIXED_BUDGET = "fixed-budget"
"""Stop at one position without an earlier probe; the score is the number of thinking tokens."""

RUNG_FAMILIES = ("rung", "cap", "rung-agreement", "rung-confidence", "rung-learned")
"""Families that climb a ladder; the score is the number of a step on a path of thresholds."""

FAMILIES = (*LEARNED_FAMILIES, *STOP_SCALARS, FIXED_BUDGET)
"""Families of policies that stop one trace."""


def display_threshold(family: str, linear: float) -> float:
    """Convert a threshold from the linear scale to the one people know.

    A probability for learned families, a confidence for ``confidence`` and ``deer``; unchanged for
    all others.
    """
    if family in ("confidence", "deer"):
        return math.exp(linear)
    if family.startswith("learned"):
        small = math.exp(-abs(linear))  # cannot overflow, and both tails stay exact
        return (1.0 if linear >= 0 else small) / (1.0 + small)
    return linear


def at_budget(position: int) -> str:
    """Where a fixed budget stops, in words."""
    return f"at {position} thinking tokens, without a probe before"


def rule_name(family: str) -> str:
    """Name of a family for a sentence, as in: stops early *by* confidence alone."""
    return _NAMES.get(family, family)


_NAMES = {
    "learned": "the learned rule",
    "learned-keeps": "the learned rule that keeps right answers",
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
