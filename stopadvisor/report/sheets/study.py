"""Sheets of `study`: the studies there are, one's tables, and what was left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap

from stopadvisor.report.screen import WIDTH
from stopadvisor.report.sheet import Section, Sheet
from stopadvisor.report.words import percent, share
from stopadvisor.studies.registry import StudyList
from stopadvisor.studies.report import SkippedStudy
from stopadvisor.studies.tables import Cell, Column, StudyReport, Table

__all__ = ["skipped_sheet", "study_list_sheet", "study_sheet"]

_RUN = "run"
"""The column that names the run; said once where there is only one."""
_GAP = 3
"""Between columns."""
_MOST_ROWS, _FIRST_ROWS = 40, 20
"""A longer table is cut on the screen, to the second number of rows."""
_MOST_KEYS = 54
"""Characters that the repeated columns of a continued table may take."""


def study_list_sheet(listed: StudyList) -> Sheet:
    """Return the studies there are."""
    rows = listed.studies
    special = tuple(f"{row.name}: {row.needs}." for row in rows if row.needs != "one run")
    options = tuple(
        f"{row.name}: --set {key}={value}" for row in rows for key, value in row.options.items()
    )
    sections = [Section("What some need", texts=special)]
    if options:
        sections.append(Section("Options of their own", texts=options))
    return Sheet(
        "Studies over finished runs: stopadvisor study NAME RUN...",
        facts=tuple((row.name, row.help) for row in rows),
        sections=tuple(sections),
    )


def study_sheet(study: StudyReport) -> Sheet:
    """Return the tables of one study."""
    facts = [("run" if len(study.runs) == 1 else "runs", ", ".join(study.runs))]
    if study.paper:
        facts.append(("paper", study.paper))
    facts.append(("protocol", " and ".join(study.protocols)))
    sections: list[Section] = []
    for table in study.tables:
        if table.rows:  # else the remarks say why
            file = f"studies/{study.study}.{table.name}.csv"
            sections += _sections(table, file, alone=len(study.runs) == 1)
    if study.remarks:
        sections.append(Section("Remarks", texts=study.remarks))
    return Sheet(f"Study: {study.study}", facts=tuple(facts), sections=tuple(sections))


def skipped_sheet(skipped: Sequence[SkippedStudy]) -> Sheet:
    """Return which studies were left out."""
    texts = tuple(f"{row.study}: {row.reason}" for row in skipped)
    return Sheet("Skipped" if texts else "No study was skipped.", sections=(Section(texts=texts),))


def _sections(table: Table, file: str, *, alone: bool) -> Iterator[Section]:
    names = [column.name for column in table.columns]
    whole = [dict(zip(names, row, strict=True)) for row in table.rows]
    shown = whole if len(whole) <= _MOST_ROWS else whole[:_FIRST_ROWS]
    columns = [_column(shown, c) for c in _shown(table.columns, alone=alone)]
    texts = []
    if len(shown) < len(whole):
        texts.append(f"{len(whole) - len(shown)} more rows stand in {file}.")
    if table.note:
        texts.append(f"{table.note[0].upper()}{table.note[1:]}.")
    blocks = list(_blocks(columns))
    for k, block in enumerate(blocks):
        left = next((k for k, column in enumerate(block) if not column.words), len(block))
        yield Section(
            table.title if k == 0 else f"{table.title}, continued",
            tuple(column.title for column in block),
            tuple(zip(*(column.cells for column in block), strict=True)),
            tuple(texts) if k == len(blocks) - 1 else (),
            left=max(left, 1),
        )


def _shown(columns: Sequence[Column], *, alone: bool) -> list[tuple[Column, ...]]:
    """Columns to print: without a run that is named above, both ends of an interval in one."""
    found: list[tuple[Column, ...]] = []
    for column in columns:
        if alone and column.name == _RUN:
            continue
        stem = column.name.removesuffix("_high")
        if stem != column.name and found and found[-1][0].name == f"{stem}_low":
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


def _column(rows: Sequence[Mapping[str, Cell]], columns: Sequence[Column]) -> _Printed:
    first = columns[0]
    values = [[row[c.name] for c in columns] for row in rows]
    cells = tuple(_joined([_cell(v, first.unit) for v in value]) for value in values)
    words = any(isinstance(value[0], str) for value in values)
    title = first.title
    if len(columns) > 1:
        title = title.removesuffix(" low").replace("95%", "95 % CI")
    widest = max(len(text) for text in (*cells, *title.split()))
    return _Printed("\n".join(wrap(title, widest)) or " ", cells, words, len(columns) > 1)


def _cell(value: Cell, unit: str) -> str:
    """A value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if unit in ("%", "share"):
        return percent(value) if unit == "%" else share(value)
    if unit == "pp":
        return f"{value:+.1f}"
    if isinstance(value, int):
        return str(value)
    return f"{value:.0f}" if unit == "tokens" else f"{value:.3g}"


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
        # An interval stands next to its figure.
        together = [column, following] if following and following.interval else [column]
        width = sum(c.width + _GAP for c in (*block, *together))
        if width > WIDTH and len(block) > len(keys) and not column.interval:
            yield block
            block = list(keys)
        block.append(column)
    yield block
