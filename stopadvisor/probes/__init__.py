"""Probe records, the table of all questions, triggers, and trajectory types."""

__all__ = [
    "asking", "grouping", "markers", "outcomes", "records", "rungs",
    "table", "trajectories", "trigger",
]  # fmt: skip
