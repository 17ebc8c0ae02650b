"""What the commands' summaries share: a console, a headline with its facts, tables, percentages.

Eighty columns wherever the width is not known, no colour where nobody can see it.  Knows shapes of
output, and no command.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

__all__ = ["Screen", "interval", "number", "number_list", "percent", "place", "plural", "share"]

WIDTH = 80
WIDEST = 100
_BAR = 20


class Screen:
    """Where a command's summary is printed."""

    def __init__(self, out: TextIO) -> None:
        self._console = Console(file=out, highlight=False, markup=False, emoji=False)
        width = self._console.width if out.isatty() else WIDTH
        self._console.width = min(width, WIDEST)

    def headline(self, text: str) -> None:
        """The result, first of all."""
        self._console.print(_styled(text, "bold"))

    def facts(self, rows: Iterable[tuple[str, str]]) -> None:
        """Name and value, one a line, values wrapped beside their names."""
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(_styled(name, "dim"), _styled(value))
        self._indented(table)

    def command(self, text: str) -> None:
        """A command to copy: never broken into lines by us."""
        self._console.print(Text(f"  next      {text}"), soft_wrap=True)

    def text(self, text: str) -> None:
        """A paragraph."""
        self._indented(_styled(text))

    def items(self, title: str, texts: Iterable[str]) -> None:
        """A title and its paragraphs."""
        self.title(title)
        for text in texts:
            self.text(text)

    def title(self, text: str) -> None:
        """The name of what follows, after an empty line."""
        self._console.print()
        self._console.print(_styled(text, "bold"))

    def table(
        self, title: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1
    ) -> None:
        """A table: the first columns to the left, as many as `left` says, the others to the right.

        A last column without a name is to the left too.
        """
        self.title(title)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
        for k, name in enumerate(header):
            right = k >= left and bool(name)
            table.add_column(name, justify="right" if right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(_styled(cell) for cell in row))
        self._indented(table)

    def _indented(self, what: Table | Text) -> None:
        self._console.print(Padding(what, (0, 0, 0, 2), expand=False))

    def bar(self, share: float) -> str:
        """A share as a bar, in characters that the output can show."""
        full = "#" if self._console.options.ascii_only else "█"
        return full * round(_BAR * share)


def _styled(text: str, style: str = "") -> Text:
    """Text whose percentages cannot be torn from their signs at a line's end."""
    return Text(text.replace(" %", "%"), style=style)


# --- Values as words ------------------------------------------------------------------------------


def share(value: float | None) -> str:
    """A share in 0–1 as a percentage."""
    return "-" if value is None else f"{100 * value:.1f}%"


def percent(value: float | None) -> str:
    """A percentage that is one already."""
    return "-" if value is None else f"{value:.1f}%"


def number(value: float | None) -> str:
    """A threshold."""
    return "-" if value is None else f"{value:.4g}"


def interval(values: Sequence[float] | None, scale: float = 1.0) -> str:
    """The 95 % interval of percentages; of shares with scale 100."""
    if values is None:
        return ""
    return f"[{scale * values[0]:.1f}, {scale * values[1]:.1f}]"


def number_list(values: Sequence[int]) -> str:
    """Numbers with commas and an "and"."""
    words = [str(value) for value in values]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def plural(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def place(path: str | Path) -> str:
    """A path as a word of a shell command."""
    return shlex.quote(str(path))
