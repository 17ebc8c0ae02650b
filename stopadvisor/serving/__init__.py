"""Answering with a policy: a workload at once, or the requests of a chat server."""

__all__ = [
    "answering", "audit_log", "audits", "engine", "gateway", "goodput", "monitoring",
    "policy_files", "profiling", "server_measurement", "totals", "vllm", "watch_settings"
]  # fmt: skip
