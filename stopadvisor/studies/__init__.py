"""The paper's studies, repeated on finished runs."""

__all__ = ["registry", "tables"]
