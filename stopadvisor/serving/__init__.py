"""Answering with a policy: a workload at once, or the requests of a chat server."""

__all__ = [
    "answering", "audit_log", "audits", "engine", "gateway", "goodput", "load", "measured",
    "monitoring", "policy_files", "profiling", "server_profile", "totals", "vllm",
    "watched"
]  # fmt: skip
