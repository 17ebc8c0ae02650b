"""What a command prints for people."""

__all__ = ["assess", "calibrate", "inspect", "policies", "study", "transfer"]
