"""What a command prints for people."""

__all__ = [
    "assess", "calibrate", "inspect", "policies", "run", "study", "transfer",
    "written"
]  # fmt: skip
