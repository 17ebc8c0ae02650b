"""What long work reports while it runs, and to whom: the consumer's side of a progress display.

Knows no terminal; `cli.progress` shows what is reported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["NullProgress", "Progress", "report_remarks"]


class Progress(Protocol):
    """Receives what long work reports."""

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """A stage of `total` traces starts, `done` of them from an earlier run."""
        ...

    def advance(self, traces: int, tokens: int) -> None:
        """Traces finished and tokens decoded since the last call."""
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

    def note(self, text: str) -> None:
        """Pass over a note."""

    def remark(self, text: str) -> None:
        """Pass over a remark."""


def report_remarks(remarks: Sequence[str], progress: Progress, reported: set[str]) -> None:
    """Pass on what an engine wants known, unless it was reported already."""
    for remark in remarks:
        if remark not in reported:
            reported.add(remark)
            progress.remark(remark)
