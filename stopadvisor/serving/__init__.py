"""Answering with a policy: a workload at once, or the requests of a chat server."""

__all__ = [
    "answer_file",
    "answer_pass",
    "answering",
    "audit_log",
    "audits",
    "chat_answer",
    "chat_reply",
    "coverage",
    "engine",
    "gateway",
    "metrics",
    "monitoring",
    "policy_files",
    "profiling",
    "recorded_stops",
    "totals",
]
