"""Questions: read from files, benchmarks or logs, checked, identified by content, and split."""

__all__ = ["converters", "inspect_log", "lines", "lm_eval_log", "logged", "questions", "traces"]
