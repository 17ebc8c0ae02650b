"""What a command prints for people."""

__all__ = [
    "assess", "calibrate", "inspect", "label", "monitor", "plan", "policies", "preflight", "run",
    "schema", "screen", "study", "transfer", "verify", "written"
]  # fmt: skip
