"""The numbers of each picture of the page."""

__all__ = ["data", "deploy"]
