"""The paper's constructions over finished runs, one module per study."""

__all__ = ["registry", "report", "tables"]
