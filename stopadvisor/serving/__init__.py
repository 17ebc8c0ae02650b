"""Answering with a policy: a workload at once, or the requests of a chat server."""

__all__ = [
    "answer_file",
    "answer_pass",
    "answering",
    "chat_reply",
    "coverage",
    "engine",
    "metrics",
    "profiling",
    "recorded_stops",
    "totals",
]
