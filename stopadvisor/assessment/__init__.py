"""Choose on fit questions only: a rule, its thresholds in testing order, the recommendation."""

__all__ = [
    "assessed", "choice", "diagnostics", "evidence", "fit_assessment", "forecasts", "frontier",
    "label_plan", "limits", "promises", "rated", "recommendation", "sequences", "settings",
]  # fmt: skip
