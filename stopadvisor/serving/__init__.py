"""Answering questions with a policy, in batches and live."""

__all__ = [
    "agreement",
    "answering",
    "answers",
    "profiling",
    "totals",
]
