"""What long work reports while it runs, and to whom: the consumer's side of a progress display.

Knows no terminal; `report.progress` shows what is reported here.
"""

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
        """Traces finished and tokens decoded since the last call."""
        ...

    def count(self, title: str, items: Iterable[Item], total: int) -> Iterator[Item]:
        """Hand on items, and say how many are done where that takes more than a moment."""
        ...

    def note(self, text: str) -> None:
        """What to show next to the rate of tokens from now on."""
        ...

    def remark(self, text: str) -> None:
        """Something the user should know, in one line."""
        ...


class NullProgress:
    """A `Progress` that shows nothing."""

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """Pass over a stage."""

    def advance(self, traces: int, tokens: int) -> None:
        """Pass over finished traces."""

    def count(self, title: str, items: Iterable[Item], total: int) -> Iterator[Item]:
        """Hand on items."""
        yield from items

    def note(self, text: str) -> None:
        """Pass over a note."""

    def remark(self, text: str) -> None:
        """Pass over a remark."""


_SHOWN: ContextVar[Progress | None] = ContextVar("shown", default=None)


@contextmanager
def shown_on(progress: Progress) -> Iterator[None]:
    """Have everything that is `tracked` meanwhile shown there."""
    before = _SHOWN.set(progress)
    try:
        yield
    finally:
        _SHOWN.reset(before)


def tracked(title: str, items: Iterable[Item], total: int | None = None) -> Iterator[Item]:
    """Go through items of work, and show how many are done on the display of the command that runs.

    Parameters
    ----------
    title : str
        What is done, such as ``measuring rules``.
    items : iterable
    total : int, optional
        How many there are; where they are no sequence, it has to be given.
    """
    if total is None:
        assert isinstance(items, Sequence)
        total = len(items)
    return (_SHOWN.get() or NullProgress()).count(title, items, total)


def report_remarks(remarks: Sequence[str], progress: Progress, reported: set[str]) -> None:
    """Pass on what an engine wants known, unless it was reported already."""
    for remark in remarks:
        if remark not in reported:
            reported.add(remark)
            progress.remark(remark)
