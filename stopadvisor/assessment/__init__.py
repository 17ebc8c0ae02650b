"""Choose on fit questions only: a rule, its thresholds in testing order, the recommendation."""

__all__ = [
    "assess", "candidates", "chances", "choice", "diagnostics", "examples", "frontier", "grouped",
    "label_need", "label_plan", "limits", "measured", "recommendation", "remarks", "requirements",
    "sequences", "settings", "signals"
]  # fmt: skip
