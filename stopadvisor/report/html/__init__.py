"""The page: one HTML file with its pictures and sentences."""

__all__ = ["page"]
