"""Chosen on fit questions only: a rule, the testing order of its thresholds, and the advice."""

__all__ = [
    "assessed", "choice", "fit_assessment", "frontier", "limits", "promises", "rated",
    "recommendation", "sequences", "settings",
]  # fmt: skip
