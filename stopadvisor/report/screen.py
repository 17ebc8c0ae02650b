"""Sheets on a terminal or in a pipe, drawn with rich.

80 columns where the width is unknown, no colour off a terminal, and ASCII on ASCII streams.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Literal, TextIO

from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stopadvisor.ground.printable import printable
from stopadvisor.report.sheet import Section, Sheet, Tone

__all__ = ["WIDTH", "Screen", "draw"]

WIDTH = 80
WIDEST = 120
_INDENT = 2
_GAP = 3
"""Spaces between two columns of a table."""
_LONGEST_WORD = 24
"""Longest word of a table that is never broken over two lines."""
_HEAD = box.SIMPLE_HEAD
_ASCII_HEAD = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
"""The same line, drawn with hyphens."""
_PLAIN = str.maketrans(
    {
        "…": "...", "–": "-", "—": "-", "−": "-", "→": "->", "≥": ">=", "≤": "<=", "×": "x",
        "α": "alpha", "δ": "delta", "µ": "u",
    }
)  # fmt: skip
"""Replacements for the characters outside ASCII that our own texts use."""

_TRAILING = re.compile(r" +(?=(\x1b\[[0-9;]*m)*$)")
"""Trailing spaces, also where an escape sequence follows them."""

_TONES = {"good": "bold green", "doubtful": "bold yellow", "bad": "bold red", None: "bold"}


def draw(sheet: Sheet, out: TextIO) -> None:
    """Print a sheet."""
    screen = Screen(out)
    screen.headline(sheet.headline, sheet.tone)
    screen.facts(sheet.facts, sheet.command, sheet.command_name)
    for section in sheet.sections:
        screen.section(section)
    if sheet.footnote:
        screen.title(sheet.footnote, "dim")


class Screen:
    """Draws the parts of a sheet on a stream."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._console = Console(file=out, highlight=False, markup=False, emoji=False)
        self._ascii = self._console.options.ascii_only
        known = out.isatty() or os.environ.get("COLUMNS", "").isdecimal()
        self._console.width = min(self._console.width if known else WIDTH, WIDEST)

    def headline(self, text: str, tone: Tone | None = None) -> None:
        """Print the headline."""
        self._print(_styled(text, _TONES[tone]))

    def section(self, section: Section) -> None:
        """Print a title, then a table or facts, then paragraphs."""
        if section.header:
            self._table(section)
        else:
            if section.title:
                self.title(section.title)
            self.facts((name, value) for name, value in section.rows)
        for text in section.texts:
            self.text(text)

    def facts(
        self, rows: Iterable[tuple[str, str]], command: str | None = None, called: str = "next"
    ) -> None:
        """Print a command, then one fact a line, its value wrapped next to its name."""
        rows = list(rows)
        if command is not None:  # on one line, however long, to be copied
            width = max((len(name) for name, _ in rows), default=0)
            label = (f"  {called:{width}}  ", "dim")
            text = Text.assemble(label, (printable(command), "bold cyan"))
            self._print(text, soft_wrap=True)
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row(_styled(name, "dim"), _styled(value))
        self._indented(table)

    def text(self, text: str) -> None:
        """Print a paragraph."""
        self._indented(_styled(text))

    def title(self, text: str, style: str = "bold") -> None:
        """Print a title or a last remark, after an empty line."""
        self._print(Text())
        self._print(_styled(text, style))

    def _table(self, section: Section) -> None:
        self.title(section.title)
        table = Table(
            box=_ASCII_HEAD if self._ascii else _HEAD,
            pad_edge=False,
            show_edge=False,
            padding=(0, _GAP - 1, 0, 0),  # the box adds one
        )
        cells = [[_styled(cell) for cell in row] for row in (section.header, *section.rows)]
        widths = self._widths(cells)
        for k, name in enumerate(section.header):
            justify: Literal["left", "right"] = "right" if k >= section.left and name else "left"
            table.add_column(cells[0][k], justify=justify, overflow="fold", width=widths[k])
        for row in cells[1:]:
            table.add_row(*row)
        # Too narrow a terminal wraps lines: a truncated figure would read as another figure.
        needed = _INDENT + sum(widths) + _GAP * (len(widths) - 1)
        width, self._console.width = self._console.width, max(self._console.width, needed)
        self._indented(table)
        self._console.width = width

    def _widths(self, cells: Sequence[Sequence[Text]]) -> list[int]:
        """Return the columns' widths, shrinking the widest but never below their longest words.

        Rich alone would break a figure over two lines.
        """
        measured = [
            [Measurement.get(self._console, self._console.options.update(max_width=1000), cell)
             for cell in column]
            for column in zip(*cells, strict=True)
        ]  # fmt: skip
        widths = [max(cell.maximum for cell in column) for column in measured]
        least = [min(max(cell.minimum for cell in c), _LONGEST_WORD) for c in measured]
        room = self._console.width - _INDENT - _GAP * (len(widths) - 1)
        while sum(widths) > room:
            slack = [(width, k) for k, width in enumerate(widths) if width > least[k]]
            if not slack:
                break
            widths[max(slack)[1]] -= 1
        return widths

    def _indented(self, what: Table | Text) -> None:
        self._print(Padding(what, (0, 0, 0, _INDENT), expand=False))

    def _print(self, what: RenderableType, *, soft_wrap: bool = False) -> None:
        """Write lines without rich's padding, in characters that the stream can encode."""
        with self._console.capture() as captured:
            self._console.print(what, soft_wrap=soft_wrap)
        text = "".join(f"{_TRAILING.sub('', line)}\n" for line in captured.get().splitlines())
        if self._ascii:
            text = text.translate(_PLAIN)
            encoding = getattr(self._out, "encoding", None) or "utf-8"
            text = text.encode(encoding, "backslashreplace").decode(encoding)
        self._out.write(text)


def _styled(text: str, style: str = "") -> Text:
    """Return printable text in which no line break separates a number from its % sign."""
    return Text(printable(text).replace(" %", "%"), style=style)
