"""Answering questions with a policy: a workload at once, and what that came to."""

__all__ = [
    "answer_file",
    "answer_pass",
    "answering",
    "engine",
    "metrics",
    "profiling",
    "recorded_stops",
    "totals",
]
