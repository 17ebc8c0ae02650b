"""An HTTP client for equal servers: picks one, retries what fails, reads answers strictly.

Public is `client.Client`; the other modules are its parts.
"""

__all__ = ["client", "completion", "key", "retries", "servers"]
