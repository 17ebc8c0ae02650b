"""What a command prints for people."""

__all__ = [
    "assess",
    "calibrate",
    "preflight",
    "run",
    "screen",
    "study",
    "verify",
]
