"""Asking servers over HTTP: which replica, again when it fails, and reading answers strictly.

Public is `client.Client`; the other modules are its parts.
"""

__all__ = [
    "client",
    "completion",
    "key",
    "retries",
    "servers",
]
