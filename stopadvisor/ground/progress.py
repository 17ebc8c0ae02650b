"""What long work reports while it runs; `report.progress` shows it on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

__all__ = ["NullProgress", "Progress", "report_remarks", "shown_on", "tracked"]

Item = TypeVar("Item")


class Progress(Protocol):
    """Receives what long work reports."""

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """A stage of `total` traces starts, `done` of them from an earlier run."""
        ...

    def advance(self, traces: int, tokens: int) -> None:
        """More traces are finished, and more tokens decoded, since the last call."""
        ...

    def count(self, title: str, items: Iterable[Item], total: int) -> Iterator[Item]:
        """Pass items on, and show how many are done if that takes more than a moment."""
        ...

    def remark(self, text: str) -> None:
        """Tell the user something, in one line."""
        ...


class NullProgress:
    """A `Progress` that shows nothing."""

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """Ignore a stage."""

    def advance(self, traces: int, tokens: int) -> None:
        """Ignore finished traces."""

    def count(self, title: str, items: Iterable[Item], total: int) -> Iterator[Item]:
        """Pass items on."""
        yield from items

    def remark(self, text: str) -> None:
        """Ignore a remark."""


_SHOWN: ContextVar[Progress | None] = ContextVar("shown", default=None)


@contextmanager
def shown_on(progress: Progress) -> Iterator[None]:
    """Show everything that is `tracked` in this block on a display."""
    before = _SHOWN.set(progress)
    try:
        yield
    finally:
        _SHOWN.reset(before)


def tracked(title: str, items: Iterable[Item], total: int | None = None) -> Iterator[Item]:
    """Go through items of work, and show how many are done on the display of the running command.

    Parameters
    ----------
    title : str
        What the work is, such as ``measuring rules``.
    items : iterable
    total : int, optional
        How many there are; required unless they are a sequence.
    """
    if total is None:
        assert isinstance(items, Sequence)
        total = len(items)
    return (_SHOWN.get() or NullProgress()).count(title, items, total)


def report_remarks(remarks: Sequence[str], progress: Progress, reported: set[str]) -> None:
    """Pass on the remarks of an engine that are not in `reported` yet."""
    for remark in remarks:
        if remark not in reported:
            reported.add(remark)
            progress.remark(remark)
