"""Results as JSON documents: for each command its fields as types, and what fills them."""

__all__ = ["assess"]
