"""What a command prints for people."""

__all__ = [
    "assess", "calibrate", "inspect", "label", "monitor", "plan", "preflight", "run", "schema",
    "screen", "shelf", "study", "transfer", "verify", "written"
]  # fmt: skip
