"""Choose on fit questions only: a rule, its thresholds in testing order, the recommendation."""

__all__ = [
    "assess",
    "choice",
    "frontier",
    "label_plan",
    "measured",
    "recommendation",
    "remarks",
    "sequences",
    "settings",
]
