"""Shared by all studies: which questions they may show, their options, tables and files.

One declaration gives a column's key, title and unit; rows, JSON and CSV follow from it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from stopadvisor.ground.errors import OutputError, StudyError
from stopadvisor.ground.printable import csv_cell
from stopadvisor.ground.progress import tracked
from stopadvisor.ground.results import to_document
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.table import ProbeTable
from stopadvisor.runs.access import closed_questions, unsealed_rows
from stopadvisor.runs.sources import Source
from stopadvisor.runs.storage import encode, make_folder, replace_file, write_json_atomically
from stopadvisor.stats.intervals import Interval
from stopadvisor.workload.questions import PARTS

__all__ = [
    "Cell", "Column", "Outline", "Row", "SkippedStudy", "StudyOptions", "StudyReport",
    "StudyReports", "Table", "View", "labels", "layout", "of_each", "require_gold", "views_of",
    "write_study",
]  # fmt: skip


@dataclass(frozen=True)
class View:
    """The questions of one source that a study may show."""

    label: str
    """Name of the source in tables."""
    table: OpenQuestions
    """The first trace of each question, or all of them."""
    basis: Literal["all", "fit"]
    """All questions, or only the fit part while calibration questions are closed."""


def views_of(sources: Sequence[Source], *, all_samples: bool = False) -> list[View]:
    """Return what a study may show of each source.

    `all_samples` gives all traces of a question instead of its first; they are not independent.
    """
    views = []
    for source, label in zip(sources, labels(sources), strict=True):
        is_closed = bool(closed_questions(source))
        rows = np.ones(source.table.n_questions, bool)
        if is_closed:
            rows = source.parts == PARTS.index("fit")
        if not all_samples:
            rows = rows & (source.table.samples == 0)
        views.append(View(label, unsealed_rows(source, rows), "fit" if is_closed else "all"))
    return views


def _paper_views(sources: Sequence[Source]) -> list[View]:
    """Like `views_of`, under the paper's ``last-checkpoint`` reference.

    Raises StudyError: a question has no gold.
    """
    views = views_of(sources)
    for shown in views:
        require_gold(shown.label, shown.table)
    return [replace(v, table=v.table.with_reference("last-checkpoint")) for v in views]


def require_gold(label: str, table: ProbeTable) -> None:
    """Raise StudyError if a question has no gold."""
    if table.graded_by != "gold":
        raise StudyError(
            f"{label}: the paper's analysis takes gold for every question, and not all of these "
            "have it"
        )


def labels(sources: Sequence[Source]) -> list[str]:
    """Names of the sources' folders, or whole paths if two folders share a name."""
    names = [source.folder.name for source in sources]
    if len(set(names)) == len(names):
        return names
    return [str(source.folder) for source in sources]


Cell = str | int | float | bool | None
"""A value, neither rounded nor formatted; None where there is none."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    """Its key in JSON and CSV: lower case, with underscores."""
    title: str
    """Its heading on a screen."""
    unit: str = ""
    """`%`, `pp`, `tokens` or `share`; empty for words and plain numbers."""


@dataclass(frozen=True)
class Table:
    """Rows of one result."""

    name: str
    """Its key in JSON and its file name in CSV: lower case, with hyphens."""
    title: str
    """Its heading."""
    columns: tuple[Column, ...]
    """Names, headings and units."""
    rows: tuple[tuple[Cell, ...], ...]
    """Values in the order of the columns, not rounded; null where there is none."""
    note: str = ""
    """How to read it; empty if the title says it all."""

    def row(self, **values: Any) -> Row:
        """Make a row; ``NAME_ci`` is an `Interval`, a pair, or None."""
        cells: list[Cell] = []
        for column in self.columns:
            if column.name in values:
                cells.append(values[column.name])
                continue
            stem, _, end = column.name.rpartition("_")
            spread = values[f"{stem}_ci"]
            if isinstance(spread, Interval):
                spread = (spread.low, spread.high)
            cells.append(spread and spread[end == "high"])
        return Row(self, tuple(cells))


@dataclass(frozen=True)
class StudyOptions:
    """Options of all studies."""

    alpha: float = 0.15
    """Risk target."""
    delta: float = 0.05
    """1 minus the confidence."""
    serving: str = "kv-fork"
    """Serving stack of `rivals`; the paper's protocol has its own."""
    resamples: int = 5000
    """Bootstrap resamples."""
    seed: int = 20270207
    """Seed of resamples and draws; the comparison at equal risk keeps the paper's."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Options of single studies, by name."""


@dataclass(frozen=True, kw_only=True)
class StudyReport:
    """A study of some runs: `study NAME --json` and `studies/NAME.json`."""

    SCHEMA: ClassVar[None] = None

    schema: int = 1
    """Raised when readers must change; each study of `study all` has it too."""
    study: str
    """Its name."""
    paper: str
    """Table or section of the paper that it repeats, if any."""
    protocols: tuple[str, ...]
    """`paper` or `deploy`."""
    runs: tuple[str, ...]
    """Names of the runs in its tables."""
    options: StudyOptions
    """Its options."""
    tables: tuple[Table, ...]
    """Its results."""
    remarks: tuple[str, ...]
    """What was left out and why, and what limits the reading."""


@dataclass(frozen=True)
class SkippedStudy:
    """A study that cannot run on these runs."""

    study: str
    """Its name."""
    reason: str
    """Why not."""


@dataclass(frozen=True)
class StudyReports:
    """All studies of some runs."""

    studies: tuple[StudyReport, ...]
    """The studies that ran."""
    skipped: tuple[SkippedStudy, ...]
    """The others."""


def write_study(report: StudyReport, run: Path) -> None:
    """Write ``STUDY.json``, and each table as ``STUDY.TABLE.csv``, into ``studies/`` of a run."""
    folder = run / "studies"
    if folder.is_symlink():
        raise OutputError(f"cannot write to {folder}: links in a run directory are not followed")
    make_folder(folder)
    for table in report.tables:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.name for column in table.columns])
        for row in table.rows:
            writer.writerow(["" if cell is None else csv_cell(cell) for cell in row])
        replace_file(folder / f"{report.study}.{table.name}.csv", encode(text.getvalue()))
    write_json_atomically(folder / f"{report.study}.json", to_document(report))


# --- Declaring tables -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A row, and the table it belongs to."""

    table: Table
    cells: tuple[Cell, ...]


def layout(name: str, title: str, note: str = "", /, **columns: str | tuple[str, str]) -> Table:
    """Declare a table: each column's title, or its title and unit, by its key.

    A key ``NAME_ci`` declares two columns: ``NAME_low`` with this title, and ``NAME_high``.  The
    title may name ``{alpha}``, ``{serving}`` and options of the study.
    """
    out: list[Column] = []
    for key, value in columns.items():
        heading, unit = (value, "") if isinstance(value, str) else value
        if key.endswith("_ci"):
            stem = key.removesuffix("_ci")
            out += [Column(f"{stem}_low", heading, unit), Column(f"{stem}_high", "high", unit)]
        else:
            out.append(Column(key, heading, unit))
    return Table(name, title, tuple(out), (), note)


Rows = Callable[[Sequence[Source], Sequence[View], StudyOptions], Iterable[Row | str]]
"""Makes the rows of all tables of a study; a text is a remark."""


def of_each(rows: Callable[[View, StudyOptions], Iterable[Row | str]]) -> Rows:
    """Make the rows of all runs with a function that makes those of one."""

    def of_all(
        _: Sequence[Source], views: Sequence[View], options: StudyOptions
    ) -> Iterator[Row | str]:
        for view in tracked("studying runs", views):
            yield from rows(view, options)

    return of_all


@dataclass(frozen=True)
class Outline:
    """A study: its name, its source in the paper, its tables, and the function that fills them."""

    study: str
    paper: str
    """As in `StudyReport`."""
    tables: tuple[Table, ...]
    """In the order of the screen."""
    rows: Rows
    views: Callable[[Sequence[Source]], list[View]] = _paper_views
    """What it shows of the runs."""
    protocols: tuple[str, ...] = ("paper",)
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Defaults of the study's own options."""

    def title(self, table: Table, options: StudyOptions) -> str:
        """Return a table's title under some options."""
        words = {**self.defaults, **options.extra}
        return table.title.format(alpha=options.alpha, serving=options.serving, **words)

    def whole(self, options: StudyOptions, name: str) -> int:
        """Read one of the study's own options as a whole number >= 1; raises StudyError."""
        value = {**self.defaults, **options.extra}[name]
        if not (value.isdecimal() and int(value) >= 1):
            raise StudyError(f"option {name} must be a whole number >= 1, got {value!r}")
        return int(value)

    def report(self, sources: Sequence[Source], options: StudyOptions) -> StudyReport:
        """Sort the rows into their tables, in order; texts become remarks, without repetition."""
        views = self.views(sources)
        rows: dict[str, list[tuple[Cell, ...]]] = {table.name: [] for table in self.tables}
        texts = []
        if closed := [view.label for view in views if view.basis == "fit"]:
            texts.append(
                f"fit questions alone: calibration questions of {', '.join(closed)} stay closed "
                "until `stopadvisor calibrate` certifies, or --open-calibration is given"
            )
        for item in self.rows(sources, views, options):
            if isinstance(item, str):
                texts.append(item)
            else:
                rows[item.table.name].append(item.cells)
        tables = tuple(
            replace(t, title=self.title(t, options), rows=tuple(rows[t.name])) for t in self.tables
        )
        return StudyReport(
            study=self.study,
            paper=self.paper,
            protocols=self.protocols,
            runs=tuple(view.label for view in views),
            options=options,
            tables=tables,
            remarks=tuple(dict.fromkeys(texts)),
        )
