"""Records of probes, the table over all questions, and what a trajectory is."""

__all__ = [
    "grouping", "markers", "outcomes", "plan", "positions", "records", "rungs", "simulation",
    "table", "trajectories", "trigger"
]  # fmt: skip
