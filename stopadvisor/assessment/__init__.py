"""Choose on fit questions only: a rule, its thresholds in testing order, the recommendation."""

__all__ = [
    "choice", "diagnostics", "evidence", "fit_assessment", "forecasts", "frontier",
    "label_plan", "limits", "promises", "rated", "recommendation",
    "rung_candidates", "sequences", "settings",
]  # fmt: skip
