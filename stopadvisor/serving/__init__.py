"""Answering with a policy: a workload at once, or the requests of a chat server."""

__all__ = [
    "answer_summary", "answering", "audit_log", "gateway", "monitored", "monitoring",
    "serve_settings", "server_profile", "vllm",
]  # fmt: skip
