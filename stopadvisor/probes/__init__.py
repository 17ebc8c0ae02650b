"""Records of probes, the table over all questions, and what a trajectory is."""

__all__ = [
    "asking", "grouping", "markers", "outcomes", "records", "rungs",
    "table", "trajectories", "trigger",
]  # fmt: skip
