"""What a command prints for people."""

__all__ = [
    "assess",
    "calibrate",
    "inspect",
    "plan",
    "preflight",
    "run",
    "schema",
    "screen",
    "study",
    "transfer",
    "verify",
    "written",
]
