"""An HTTP client for replicas of one server: balances, retries, and parses answers strictly."""

__all__ = ["client", "completion", "key", "servers"]
