"""Answering under a policy: a whole workload, or the requests of a chat server."""

__all__ = [
    "answer_summary", "answering", "audit_log", "gateway", "monitored", "monitoring",
    "serve_settings", "server_profile", "vllm",
]  # fmt: skip
