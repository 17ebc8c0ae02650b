"""Errors that all engines share, and helpers that unwrap or shorten errors."""

from __future__ import annotations

import importlib.util

from stopadvisor.ground.errors import EngineError, ModelError, StopAdvisorError

__all__ = ["OutOfMemory", "first_error", "first_line", "require_packages"]


class OutOfMemory(EngineError):
    """A batch did not fit into memory; smaller batches of the same prompts may."""


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first `StopAdvisorError` of a task group, or the group if it has none."""
    ours = group.subgroup(StopAdvisorError)
    if ours is None:
        return group
    error: BaseException = ours
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def require_packages(
    extra: str, *packages: str, what: str | None = None, error: type[StopAdvisorError] = ModelError
) -> None:
    """Raise `error` with the pip command if a package of this extra is missing."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise error(
                f"{what or f'the {extra} engine'} needs {package}, which is not installed: "
                f"pip install 'stopadvisor[{extra}]'"
            )
