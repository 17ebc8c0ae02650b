"""What a command prints for people."""

__all__ = [
    "assess",
    "calibrate",
    "run",
    "screen",
    "study",
    "verify",
]
