"""A module a result: one function takes the typed result and returns its sheet."""

__all__ = [
    "assess", "calibrate", "files", "inspect", "monitor", "plan", "run", "study",
    "verify",
]  # fmt: skip
