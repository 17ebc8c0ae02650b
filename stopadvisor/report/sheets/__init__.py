"""A module a result: one function takes the typed result and returns its sheet."""

__all__ = ["files", "label", "monitor", "plan", "preflight", "promote", "run", "verify"]
