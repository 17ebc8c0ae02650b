"""Logs of evaluation programs as workloads, a module for each program's format."""

__all__ = [
    "gather",
    "inspect_log",
    "lighteval",
    "lm_eval",
    "logged",
    "openai_batch",
    "parquet",
    "promptfoo",
    "registry",
    "tables",
]
