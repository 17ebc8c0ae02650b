"""Sheets of `study`: the list of studies, the tables of one, and those that were skipped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

from stopadvisor.report.screen import WIDTH
from stopadvisor.report.sheet import Section, Sheet
from stopadvisor.report.words import percent, share
from stopadvisor.studies.registry import StudyList
from stopadvisor.studies.tables import Cell, Column, SkippedStudy, StudyReport, Table

__all__ = ["skipped_sheet", "study_list_sheet", "study_sheet"]

_RUN = "run"
"""The column that names the run; left out where there is only one."""
_GAP = 3
"""Spaces between columns."""
_MOST_ROWS, _FIRST_ROWS = 40, 20
"""A table longer than the first is cut to the second."""


def study_list_sheet(listed: StudyList) -> Sheet:
    """Return the list of studies."""
    rows = listed.studies
    needs = tuple(f"{row.name}: {row.needs}." for row in rows if row.needs != "one run")
    options = tuple(
        f"{row.name}: --set {key}={value}" for row in rows for key, value in row.options.items()
    )
    return Sheet(
        "Studies over finished runs: stopadvisor study NAME RUN...",
        facts=tuple((row.name, row.help) for row in rows),
        sections=(
            Section("What some need", texts=needs),
            Section("Options of their own", texts=options),
        ),
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
            sections += _sections(table, file, one_run=len(study.runs) == 1)
    if study.remarks:
        sections.append(Section("Remarks", texts=study.remarks))
    return Sheet(f"Study: {study.study}", facts=tuple(facts), sections=tuple(sections))


def skipped_sheet(skipped: Sequence[SkippedStudy]) -> Sheet:
    """Return the studies that were skipped."""
    texts = tuple(f"{row.study}: {row.reason}" for row in skipped)
    return Sheet("Skipped", sections=(Section(texts=texts),))


def _sections(table: Table, file: str, *, one_run: bool) -> Iterator[Section]:
    """Split a table into parts that fit the screen; the columns of names are repeated in each."""
    shown = table.rows if len(table.rows) <= _MOST_ROWS else table.rows[:_FIRST_ROWS]
    texts = []
    if len(shown) < len(table.rows):
        texts.append(f"{len(table.rows) - len(shown)} more rows are in {file}.")
    if table.note:
        texts.append(f"{table.note[0].upper()}{table.note[1:]}.")
    columns = [_printed(group, shown) for group in _groups(table.columns, one_run=one_run)]
    n_keys = 1 + (len(columns) > 1 and columns[0].words and columns[1].words)
    keys, block, blocks = columns[:n_keys], columns[:n_keys], []
    for column in columns[n_keys:]:
        if sum(each.width + _GAP for each in (*block, column)) > WIDTH and len(block) > n_keys:
            blocks.append(block)
            block = [*keys]
        block.append(column)
    blocks.append(block)
    for k, block in enumerate(blocks):
        yield Section(
            table.title if k == 0 else f"{table.title}, continued",
            tuple(column.title for column in block),
            tuple(zip(*(column.cells for column in block), strict=True)),
            tuple(texts) if k == len(blocks) - 1 else (),
            left=max(next((k for k, c in enumerate(block) if not c.words), len(block)), 1),
        )


def _groups(columns: Sequence[Column], *, one_run: bool) -> list[list[tuple[int, Column]]]:
    """Return the columns to print, each with those of its interval; one run needs no name."""
    groups: list[list[tuple[int, Column]]] = []
    for k, column in enumerate(columns):
        if column.name.endswith(("_low", "_high")):
            groups[-1].append((k, column))
        elif not (one_run and column.name == _RUN):
            groups.append([(k, column)])
    return groups


@dataclass(frozen=True)
class _Printed:
    """A column as printed."""

    title: str
    """Heading, wrapped to the width of the column."""
    cells: tuple[str, ...]
    words: bool
    """Whether it holds names: aligned left, and repeated where a table continues."""

    @property
    def width(self) -> int:
        return max(len(line) for text in (self.title, *self.cells) for line in text.split("\n"))


def _printed(group: Sequence[tuple[int, Column]], rows: Sequence[Sequence[Cell]]) -> _Printed:
    """Format figures, each with its interval in brackets."""
    (first, column), *ends = group
    cells = []
    for row in rows:
        text = _cell(row[first], column.unit)
        if ends and row[ends[0][0]] is not None:
            text += f" [{', '.join(_cell(row[k], end.unit) for k, end in ends)}]"
        cells.append(text)
    title = column.title + " 95% CI" * bool(ends)
    widest = max(len(text) for text in (*cells, *title.split()))
    words = any(isinstance(row[first], str) for row in rows)
    return _Printed("\n".join(wrap(title, widest)) or " ", tuple(cells), words)


def _cell(value: Cell, unit: str) -> str:
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
