"""What commands share: options, what is made of them, help and configuration."""

__all__ = ["command", "declare", "model", "probing", "settings"]
