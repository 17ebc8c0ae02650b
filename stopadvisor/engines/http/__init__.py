"""An HTTP client for replicas of one server: balances load, retries, parses answers strictly."""

__all__ = ["client", "completion", "key", "servers"]
