"""Stopping rules: where they probe, how they score, what they lose and cost."""

__all__ = [
    "climb", "costs", "drift", "families", "features", "losses", "model_shape", "outcomes",
    "roofline", "scorer", "scores", "serving_profile",
]  # fmt: skip
