"""The paper's constructions over finished runs, one module a study."""

__all__ = ["batch", "registry", "report", "tables"]
