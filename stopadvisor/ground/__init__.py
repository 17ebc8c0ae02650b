"""Shared by all wings: errors, the paper's numbers, results as JSON, text, arrays, progress."""

__all__ = [
    "arrays", "constants", "errors", "fields", "json_text", "printable", "progress", "results"
]  # fmt: skip
