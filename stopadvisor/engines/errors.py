"""The error of too large a batch, and the first of ours among several.  Knows no engine."""

from __future__ import annotations

from stopadvisor.errors import EngineError, StopAdvisorError

__all__ = ["OutOfMemory", "first_error"]


class OutOfMemory(EngineError):
    """A batch did not fit into memory; the same prompts in smaller batches may."""


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first of our errors among those of several tasks; without one, the group."""
    ours = group.subgroup(StopAdvisorError)
    if ours is None:
        return group
    error: BaseException = ours
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
