"""Progress of long work; `report.progress` shows it on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["Progress", "report_remarks", "shown_on", "tracked"]

Item = TypeVar("Item")


class Progress:
    """Receives the progress of long work; this base class shows nothing."""

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """Start a stage of `total` traces, `done` of which come from an earlier run."""

    def advance(self, traces: int, tokens: int) -> None:
        """Add traces finished and tokens decoded since the last call."""

    def count(self, title: str, items: Iterable[Item], total: int) -> Iterator[Item]:
        """Yield the items, and show how many are done if it takes long."""
        yield from items

    def remark(self, text: str) -> None:
        """Show one line to the user."""

    def notes(self, texts: Iterable[str]) -> None:
        """Show remarks on a result, a line each."""
        for text in texts:
            self.remark(f"note: {text}")


_SHOWN: ContextVar[Progress | None] = ContextVar("shown", default=None)


@contextmanager
def shown_on(progress: Progress) -> Iterator[None]:
    """Show work that is `tracked` inside this block on `progress`."""
    before = _SHOWN.set(progress)
    try:
        yield
    finally:
        _SHOWN.reset(before)


def tracked(title: str, items: Iterable[Item], total: int | None = None) -> Iterator[Item]:
    """Yield items of work, and show how many are done on the display of the running command.

    Parameters
    ----------
    title : str
        Name of the work, such as ``measuring rules``.
    items : iterable
    total : int, optional
        Number of items; required unless they are a sequence.
    """
    if total is None:
        assert isinstance(items, Sequence)
        total = len(items)
    return (_SHOWN.get() or Progress()).count(title, items, total)


def report_remarks(remarks: Sequence[str], progress: Progress, reported: set[str]) -> None:
    """Show the remarks of an engine that are not in `reported` yet, and add them to it."""
    for remark in remarks:
        if remark not in reported:
            reported.add(remark)
            progress.remark(remark)
