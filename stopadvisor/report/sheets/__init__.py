"""A module a result: one function takes the typed result and returns its sheet."""

__all__ = [
    "assess", "calibrate", "files", "inspect", "monitor", "plan", "preflight", "run", "study",
    "verify",
]  # fmt: skip
