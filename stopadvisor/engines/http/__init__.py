"""An HTTP client for equal servers: picks one, retries what fails, reads answers strictly."""

__all__ = ["client", "completion", "key", "servers"]
