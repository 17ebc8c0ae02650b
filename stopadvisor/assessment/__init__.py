"""Choose on fit questions only: a rule, its thresholds in testing order, the recommendation."""

__all__ = [
    "assessed", "choice", "fit_assessment", "forecasts", "frontier", "limits", "promises", "rated",
    "recommendation", "sequences", "settings",
]  # fmt: skip
