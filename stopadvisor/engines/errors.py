"""What an engine raises beside `EngineError` and `ModelError`.  Knows no engine."""

from __future__ import annotations

from stopadvisor.errors import EngineError

__all__ = ["OutOfMemory"]


class OutOfMemory(EngineError):
    """A batch did not fit into memory; the same prompts in smaller batches may."""
