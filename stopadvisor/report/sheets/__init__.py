"""A module a result: one function takes the typed result and returns its sheet."""

__all__ = ["preflight", "promote"]
