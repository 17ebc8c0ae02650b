"""Sheets: for each result a function that takes the result and returns its sheet."""

__all__ = [
    "assess", "calibrate", "files", "inspect", "monitor", "plan", "run", "study",
    "verify",
]  # fmt: skip
