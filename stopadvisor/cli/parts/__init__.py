"""Shared by commands: options, the settings made from them, help and configuration files."""

__all__ = ["command", "declare", "model", "probing", "settings"]
