"""Labelled questions: read, checked, identified by content and split."""

__all__ = ["converters", "imports", "lines", "questions", "traces"]
