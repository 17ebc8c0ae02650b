"""Rules for stopping: their scores, where they stop, what is lost and what it costs."""

__all__ = [
    "boosting",
    "costs",
    "drift",
    "families",
    "features",
    "outcomes",
    "paper_costs",
    "scorer",
    "scores",
    "serving_profile",
]
