"""What a command prints for people."""

__all__ = ["assess", "calibrate", "inspect", "monitor", "policies", "study", "transfer", "written"]
