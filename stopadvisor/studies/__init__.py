"""The paper's constructions over finished runs, related ones in a module."""

__all__ = ["registry", "tables"]
