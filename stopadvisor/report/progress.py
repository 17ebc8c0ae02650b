"""Progress and remarks on stderr: a live bar on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO, TypeVar

from stopadvisor.ground.printable import printable
from stopadvisor.ground.progress import Progress, shown_on

__all__ = ["LineProgress", "progress_on", "remark_first", "time_left"]

Item = TypeVar("Item")

LINE_EVERY_S = 10.0
_LINE_AFTER_S = 5.0
"""Seconds before the first line of work without tokens: most of it ends sooner."""
_BAR_AFTER_S = 1.0
_MOST_NAMED = 3
"""Sentences of one kind to print; the others are counted."""
_SHOWN_FROM = 0.05
"""Share of a stage that must be done before the remaining time is shown: many traces run at once,
and the first to finish says little about the others."""


@contextmanager
def progress_on(err: TextIO, *, quiet: bool = False) -> Iterator[Progress]:
    """Show progress while a command runs."""
    progress: Progress
    if quiet:
        progress = Progress()
    elif err.isatty():
        progress = _BarProgress(err)
    else:
        progress = LineProgress(err)
    with shown_on(progress):
        try:
            yield progress
        finally:
            if isinstance(progress, _BarProgress):
                progress.close()


def remark_first(progress: Progress, kind: str, sentences: Sequence[str]) -> None:
    """Print the first sentences, and how many more there are."""
    for sentence in sentences[:_MOST_NAMED]:
        progress.remark(f"{kind}: {sentence}")
    if len(sentences) > _MOST_NAMED:
        progress.remark(f"{kind}: {len(sentences) - _MOST_NAMED} more")


def time_left(seconds: float) -> str:
    """Return a duration in words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _rate(done: int, seconds: float) -> str:
    rate = done / max(seconds, 1e-9)
    if rate < 1:
        return f"{60 * rate:.1f}/min"
    return f"{rate:.0f}/s" if rate >= 10 else f"{rate:.1f}/s"


class LineProgress(Progress):
    """For logs: one plain line per stage and then one every ten seconds."""

    def __init__(self, err: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._err = err
        self._clock = clock
        self._title = ""
        self._total = self._done = self._new = self._tokens = 0
        self._began = self._spoke = 0.0

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """Announce a stage."""
        self._title, self._total, self._done = title, total, done
        self._new = self._tokens = 0
        self._began = self._spoke = self._clock()
        self.remark(f"{title}: {done}/{total} done")

    def advance(self, traces: int, tokens: int) -> None:
        """Count, and print a line if ten seconds have passed or the stage is over."""
        self._done += traces
        self._new += traces
        self._tokens += tokens
        now = self._clock()
        if now - self._spoke < LINE_EVERY_S and self._done < self._total:
            return
        self._spoke = now
        spent = max(now - self._began, 1e-9)
        left = ""
        if self._done < self._total and self._new >= _SHOWN_FROM * self._total:
            left = _about((self._total - self._done) * spent / self._new)
        rate = f"{self._tokens / spent:.0f} tokens/s"
        self.remark(f"{self._title}: {self._done}/{self._total}, {rate}{left}")

    def count(self, title: str, items: Iterable[Item], total: int) -> Iterator[Item]:
        """Yield the items; print a line after five seconds, then every ten."""
        began = self._clock()
        due = began + _LINE_AFTER_S
        for done, item in enumerate(items, start=1):
            yield item
            now = self._clock()
            if now >= due:
                due, spent = now + LINE_EVERY_S, now - began
                left = _about((total - done) * spent / done) if done < total else ""
                self.remark(f"{title}: {done}/{total}, {_rate(done, spent)}{left}")

    def remark(self, text: str) -> None:
        """Write one line."""
        print(printable(text), file=self._err, flush=True)


def _about(seconds: float) -> str:
    return f", about {time_left(seconds)} left"


class _BarProgress(Progress):
    """For people: rich's live bar, remarks above it."""

    def __init__(self, err: TextIO) -> None:
        from rich import progress
        from rich.console import Console

        self._console = Console(file=err, highlight=False)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[rate]}"),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("", visible=False, rate="")
        self._tokens = 0
        self._began = 0.0

    def begin(self, title: str, total: int, done: int = 0) -> None:
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(title, total=total, completed=done, rate="")
        self._tokens, self._began = 0, time.monotonic()
        self._bar.start()

    def advance(self, traces: int, tokens: int) -> None:
        self._tokens += tokens
        rate = self._tokens / max(time.monotonic() - self._began, 1e-9)
        self._bar.update(self._task, advance=traces, rate=f"{rate:.0f} tokens/s")

    def count(self, title: str, items: Iterable[Item], total: int) -> Iterator[Item]:
        began, task = time.monotonic(), None
        for done, item in enumerate(items, start=1):
            yield item
            spent = time.monotonic() - began
            if task is None and spent >= _BAR_AFTER_S:
                task = self._bar.add_task(title, total=total, rate="")
                self._bar.start()
            if task is not None:
                self._bar.update(task, completed=done, rate=_rate(done, spent))
        if task is not None:
            self._bar.remove_task(task)

    def remark(self, text: str) -> None:
        self._console.print(printable(text), markup=False)

    def close(self) -> None:
        self._bar.stop()
