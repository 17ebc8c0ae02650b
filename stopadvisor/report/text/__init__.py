"""What a command prints for people."""

__all__ = [
    "assess",
    "calibrate",
    "plan",
    "preflight",
    "run",
    "screen",
    "study",
    "transfer",
    "verify",
]
