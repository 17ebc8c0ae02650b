"""Asking servers over HTTP: which one, again when it fails, and reading what it says strictly."""

__all__ = [
    "client",
    "completion",
    "key",
    "retries",
    "servers",
]
