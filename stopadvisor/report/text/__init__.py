"""What a command prints for people."""

__all__ = ["assess"]
