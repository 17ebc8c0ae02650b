"""The numbers behind each picture of the page."""

__all__ = ["data", "deploy", "paper"]
