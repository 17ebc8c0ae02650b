"""Rules for stopping: their scores, where they stop, what is lost and what it costs."""

__all__ = [
    "climb",
    "costs",
    "drift",
    "families",
    "features",
    "losses",
    "model_shape",
    "outcomes",
    "roofline",
    "schedules",
    "scorer",
    "scores",
    "serving_costs",
    "serving_profile",
]
