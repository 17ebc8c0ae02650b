"""Choose on fit questions only: a rule, its thresholds in testing order, the recommendation."""

__all__ = [
    "assess", "candidates", "chances", "choice", "diagnostics", "evidence", "examples", "frontier",
    "grouped", "label_plan", "limits", "measured", "recommendation", "remarks", "requirements",
    "sequences", "settings", "signals"
]  # fmt: skip
