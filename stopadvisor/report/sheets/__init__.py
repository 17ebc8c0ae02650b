"""A module a result: one function takes the typed result and returns its sheet."""

__all__ = [
    "assess", "calibrate", "files", "inspect", "label", "monitor", "plan", "preflight",
    "profile_serving", "promote", "run", "study", "verify"
]  # fmt: skip
