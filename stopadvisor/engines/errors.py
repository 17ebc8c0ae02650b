"""Raise and word what goes wrong in any engine: a batch too large, a package that is missing.

Knows no engine.
"""

from __future__ import annotations

import importlib.util

from stopadvisor.ground.errors import EngineError, ModelError, StopAdvisorError

__all__ = ["OutOfMemory", "first_error", "first_line", "require_packages"]


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


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its name where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def require_packages(extra: str, *packages: str, what: str | None = None) -> None:
    """Refuse an engine, or what is named, whose extra is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ModelError(
                f"{what or f'the {extra} engine'} needs {package}, which is not installed: "
                f"pip install 'stopadvisor[{extra}]'"
            )
