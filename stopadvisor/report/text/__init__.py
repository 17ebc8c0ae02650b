"""What a command prints for people."""

__all__ = [
    "assess", "calibrate", "inspect", "label", "monitor", "plan", "policies", "run", "study",
    "transfer", "verify", "written"
]  # fmt: skip
