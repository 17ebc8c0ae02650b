"""Shared by commands: options, the settings made from them, help, configuration files and failures."""

__all__ = ["command", "declare", "failed", "model", "probing", "settings"]
