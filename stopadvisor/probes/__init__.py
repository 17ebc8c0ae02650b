"""Records of probes, the table over all questions, and what a trajectory is."""

__all__ = [
    "grouping",
    "markers",
    "outcomes",
    "plan",
    "records",
    "simulation",
    "table",
    "trajectories",
    "trigger",
]
