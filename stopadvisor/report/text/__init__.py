"""What a command prints for people."""

__all__ = [
    "assess", "calibrate", "inspect", "monitor", "policies", "run", "study", "transfer",
    "verify", "written"
]  # fmt: skip
