"""Choose on fit questions only: a rule, its thresholds in testing order, the recommendation."""

__all__ = [
    "assess",
    "choice",
    "diagnostics",
    "evidence",
    "examples",
    "frontier",
    "label_plan",
    "measured",
    "points",
    "recommendation",
    "remarks",
    "sequences",
    "settings",
    "signals",
]
