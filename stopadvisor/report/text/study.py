"""Studies for people: their list, one's tables, and what was left out.

Reads the documents that `studies.write` makes, so that screen and file say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap
from typing import Any, TextIO

from stopadvisor.report.screen import WIDTH, Screen
from stopadvisor.report.words import cell

__all__ = ["show_list", "show_skipped", "show_study"]

Document = Mapping[str, Any]

_RUN = "run"
"""The column that names the run; said once where there is only one."""
_GAP = 3
"""Between columns."""
_MOST_ROWS, _FIRST_ROWS = 40, 20
"""A longer table is cut on the screen, to so many rows."""
_MOST_KEYS = 54
"""Characters that the repeated columns of a continued table may take."""


def show_list(rows: Sequence[Document], out: TextIO) -> None:
    """Print the studies there are."""
    screen = Screen(out)
    screen.headline("Studies over finished runs: stopadvisor study NAME RUN...")
    screen.facts((row["name"], row["help"]) for row in rows)
    special = [row for row in rows if row["needs"] != "one run"]
    screen.items("What some need", [f"{row['name']}: {row['needs']}." for row in special])
    own = [
        f"{row['name']}: --set {key}={value}"
        for row in rows
        for key, value in row["options"].items()
    ]
    if own:
        screen.items("Options of their own", own)


def show_study(document: Document, out: TextIO) -> None:
    """Print the tables of one study."""
    screen = Screen(out)
    screen.headline(f"Study: {document['study']}")
    runs = document["runs"]
    facts = [("run" if len(runs) == 1 else "runs", ", ".join(runs))]
    if document["paper"]:
        facts.append(("paper", document["paper"]))
    facts.append(("protocol", " and ".join(document["protocols"])))
    screen.facts(facts)
    for table in document["tables"]:
        if not table["rows"]:
            continue  # the remarks say why
        file = f"studies/{document['study']}.{table['name']}.csv"
        _table(screen, table, file, alone=len(runs) == 1)
    if document["remarks"]:
        screen.items("Remarks", document["remarks"])


def _table(screen: Screen, table: Document, file: str, *, alone: bool) -> None:
    names = [column["name"] for column in table["columns"]]
    whole = [dict(zip(names, row, strict=True)) for row in table["rows"]]
    shown = whole if len(whole) <= _MOST_ROWS else whole[:_FIRST_ROWS]
    columns = [_column(shown, c) for c in _shown(table["columns"], alone=alone)]
    title = table["title"]
    for block in _blocks(columns):
        left = next((k for k, column in enumerate(block) if not column.words), len(block))
        rows = list(zip(*(column.cells for column in block), strict=True))
        screen.table(title, [column.title for column in block], rows, left=max(left, 1))
        title = f"{table['title']}, continued"
    if len(shown) < len(whole):
        screen.text(f"{len(whole) - len(shown)} more rows stand in {file}.")
    if table["note"]:
        screen.text(f"{table['note'][0].upper()}{table['note'][1:]}.")


def _shown(columns: Sequence[Document], *, alone: bool) -> list[tuple[Document, ...]]:
    """Columns to print: without a run that is named above, both ends of an interval in one."""
    found: list[tuple[Document, ...]] = []
    for column in columns:
        if alone and column["name"] == _RUN:
            continue
        stem = column["name"].removesuffix("_high")
        if stem != column["name"] and found and found[-1][0]["name"] == f"{stem}_low":
            found[-1] = (found[-1][0], column)
        else:
            found.append((column,))
    return found


@dataclass(frozen=True)
class _Printed:
    """A column as it will stand on the screen."""

    title: str
    """In lines no wider than the column."""
    cells: tuple[str, ...]
    words: bool
    """To the left, and repeated where a table continues."""
    interval: bool
    """About the column before it."""

    @property
    def width(self) -> int:
        return max(len(line) for text in (self.title, *self.cells) for line in text.split("\n"))


def _column(rows: Sequence[Document], columns: Sequence[Document]) -> _Printed:
    first = columns[0]
    values = [[row[c["name"]] for c in columns] for row in rows]
    cells = tuple(_joined([cell(v, first["unit"]) for v in value]) for value in values)
    words = any(isinstance(value[0], str) for value in values)
    title = first["title"]
    if len(columns) > 1:
        title = title.removesuffix(" low").replace("95%", "95 % CI")
    widest = max(len(text) for text in (*cells, *title.split()))
    return _Printed("\n".join(wrap(title, widest)) or " ", cells, words, len(columns) > 1)


def _joined(cells: Sequence[str]) -> str:
    """A value, or the two ends of an interval."""
    if len(cells) == 1 or "-" in cells:
        return cells[0]
    return f"[{cells[0]}, {cells[1]}]"


def _blocks(columns: Sequence[_Printed]) -> Iterator[list[_Printed]]:
    """Columns side by side as far as they fit; the first names stand in every block."""
    keys = [columns[0]]
    if len(columns) > 1 and columns[0].words and columns[1].words:
        both = columns[0].width + _GAP + columns[1].width
        keys = list(columns[:2]) if both <= _MOST_KEYS else keys
    block = list(keys)
    for column, following in zip_longest(columns[len(keys) :], columns[len(keys) + 1 :]):
        # An interval stands beside what it is about.
        together = [column, following] if following and following.interval else [column]
        if _width([*block, *together]) > WIDTH and len(block) > len(keys) and not column.interval:
            yield block
            block = list(keys)
        block.append(column)
    yield block


def _width(columns: Sequence[_Printed]) -> int:
    return sum(column.width + _GAP for column in columns)


def show_skipped(skipped: Sequence[Document], out: TextIO) -> None:
    """Print which studies were left out; nothing where none was."""
    if skipped:
        screen = Screen(out)
        screen.items("Skipped", [f"{row['study']}: {row['reason']}" for row in skipped])
