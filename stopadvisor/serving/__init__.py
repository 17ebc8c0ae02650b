"""Answering with a policy: a workload at once, or the requests of a chat server."""

__all__ = [
    "answer_pass", "answer_summary", "answering", "audit_log", "audit_records", "audits", "gateway",
    "monitored", "monitoring", "policy_files", "server_profile", "vllm", "watch_settings",
]  # fmt: skip
