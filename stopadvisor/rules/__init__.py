"""Stopping rules: where they probe, their scores, losses and costs."""

__all__ = [
    "climb", "costs", "drift", "families", "features", "losses", "model_shape", "outcomes",
    "roofline", "schedules", "scorer", "scores", "serving_profile",
]  # fmt: skip
