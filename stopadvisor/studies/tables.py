"""The options and the result of a study, and how it declares its tables.

One declaration gives a column's key, title and unit; rows, JSON and CSV follow from it.  Knows no
study by name, and no files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from stopadvisor.ground.errors import StudyError
from stopadvisor.runs.access import View, basis_remarks
from stopadvisor.stats.bootstrap import Interval

__all__ = [
    "Cell", "Column", "Outline", "Row", "StudyOptions", "StudyReport", "Table", "layout",
]  # fmt: skip

Cell = str | int | float | bool | None
"""A value as computed, neither rounded nor formatted; None where there is none."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    """Its key in JSON and CSV: lower case, with underscores."""
    title: str
    """Its heading on a screen."""
    unit: str = ""
    """Empty for words and plain numbers, else `%`, `pp`, `tokens` or `share`."""


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
    """Values in the order of the columns, as computed; null where there is none."""
    note: str = ""
    """How to read it; empty where the title says it all."""

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
    """Serving regime of the deploy protocol; the paper's protocol has its own."""
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
    """Raised when a program that reads this must change; each study of `study all` has it too."""
    study: str
    """Its name."""
    paper: str
    """Table or section of the paper that it repeats; empty if it repeats none."""
    protocols: tuple[str, ...]
    """`paper`, `deploy` or both."""
    runs: tuple[str, ...]
    """Names of the runs in its tables."""
    options: StudyOptions
    """Its options."""
    tables: tuple[Table, ...]
    """Its results."""
    remarks: tuple[str, ...]
    """What was left out and why, and what limits the reading."""


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


@dataclass(frozen=True)
class Outline:
    """Name, source in the paper and tables of a study."""

    study: str
    paper: str
    """As in `StudyReport`."""
    tables: tuple[Table, ...]
    """In the order of the screen."""
    protocols: tuple[str, ...] = ("paper",)
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Defaults of the options that this study alone has."""

    def title(self, table: Table, options: StudyOptions) -> str:
        """Title of a table under some options."""
        words = {**self.defaults, **options.extra}
        return table.title.format(alpha=options.alpha, serving=options.serving, **words)

    def whole(self, options: StudyOptions, name: str) -> int:
        """One of the study's own options, as a whole number >= 1.

        Raises
        ------
        StudyError
            It is not such a number.
        """
        value = {**self.defaults, **options.extra}[name]
        if not (value.isdecimal() and int(value) >= 1):
            raise StudyError(f"option {name} must be a whole number >= 1, got {value!r}")
        return int(value)

    def result(
        self, made: Iterable[Row | str], options: StudyOptions, views: Sequence[View]
    ) -> StudyReport:
        """Sort rows into their tables, keeping their order; a text is a remark, kept once."""
        rows: dict[str, list[tuple[Cell, ...]]] = {table.name: [] for table in self.tables}
        texts = list(basis_remarks(views))
        for item in made:
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
