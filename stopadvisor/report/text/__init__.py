"""What a command prints for people."""

__all__ = [
    "assess",
    "calibrate",
    "plan",
    "preflight",
    "run",
    "schema",
    "screen",
    "study",
    "transfer",
    "verify",
]
