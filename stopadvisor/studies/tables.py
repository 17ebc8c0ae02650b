"""What a study takes and returns: sources in, tables out; and how it declares its tables.

One declaration says a column's key, title and unit; rows, JSON and CSV follow from it.  Knows no
study by name, and neither files nor formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stopadvisor.stats.bootstrap import Interval

__all__ = [
    "Cell",
    "Column",
    "Layout",
    "Outline",
    "Row",
    "StudyOptions",
    "StudyResult",
    "Table",
    "Unit",
    "layout",
]

Cell = str | int | float | bool | None
"""A value as computed, neither rounded nor formatted; None where there is none."""

Unit = str
"""``""`` for words and plain numbers, else ``%``, ``pp``, ``tokens``, ``share``, ``s``, ``$``;
``chance`` for an estimated probability, which is never quite 0 or 1."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    """Its key in JSON and CSV: lower case, with underscores."""
    title: str
    """Its heading on a screen."""
    unit: Unit = ""
    """Empty, `%`, `pp`, `tokens`, `share`, `chance`, `s` or `$`."""


@dataclass(frozen=True)
class Table:
    """Rows of one result."""

    name: str
    """Its key in JSON and its file name in CSV: lower case, with hyphens."""
    title: str
    """In words."""
    columns: tuple[Column, ...]
    """Names, headings and units."""
    rows: tuple[tuple[Cell, ...], ...]
    """Values in the order of the columns, as computed; null where there is none."""
    note: str = ""
    """How to read it, in a sentence; empty where the title says all."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"table {self.name!r} has {len(self.columns)} columns, got a row of {len(row)}"
                )


@dataclass(frozen=True)
class StudyResult:
    """What one study found."""

    study: str
    paper: str
    """The table or section of the paper whose construction this is; empty where it has none."""
    protocols: tuple[str, ...]
    """``paper``, ``deploy`` or both."""
    tables: tuple[Table, ...]
    remarks: tuple[str, ...] = ()
    """What was left out and why, and what limits the reading."""


@dataclass(frozen=True)
class StudyOptions:
    """What all studies share."""

    alpha: float = 0.15
    """Risk target."""
    delta: float = 0.05
    """1 minus the confidence."""
    serving: str = "kv-fork"
    """Serving regime, where costs are counted as served."""
    resamples: int = 5000
    """Bootstrap resamples."""
    seed: int = 20270207
    """Of the resamples."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Options of single studies, by name."""


# --- Declaring tables -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A row, and the table it stands in."""

    layout: Layout
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Layout:
    """A table before it has rows; `layout` makes it."""

    name: str
    title: str
    """May name ``{alpha}``, ``{serving}`` and options of the study."""
    note: str
    keys: tuple[str, ...]
    """What a row gives, in order; ``NAME_ci`` are both ends of an interval."""
    columns: tuple[Column, ...]

    def row(self, **values: Any) -> Row:
        """Make a row; an interval is an `Interval`, a pair, or None."""
        if values.keys() != set(self.keys):
            raise TypeError(f"table {self.name!r}: expected {self.keys}, got {tuple(values)}")
        cells: list[Cell] = []
        for key in self.keys:
            value = values[key]
            if not key.endswith("_ci"):
                cells.append(value)
            elif isinstance(value, Interval):
                cells += [value.low, value.high]
            else:
                cells += value or (None, None)
        return Row(self, tuple(cells))


def layout(name: str, title: str, note: str = "", /, **columns: str | tuple[str, Unit]) -> Layout:
    """Declare a table: each column's title, or its title and unit, by its key.

    A key ``NAME_ci`` declares two columns: ``NAME_low`` with this title, and ``NAME_high``.
    """
    out: list[Column] = []
    for key, value in columns.items():
        heading, unit = (value, "") if isinstance(value, str) else value
        if key.endswith("_ci"):
            stem = key.removesuffix("_ci")
            out += [Column(f"{stem}_low", heading, unit), Column(f"{stem}_high", "high", unit)]
        else:
            out.append(Column(key, heading, unit))
    return Layout(name, title, note, tuple(columns), tuple(out))


@dataclass(frozen=True)
class Outline:
    """What a study says of itself before it runs."""

    study: str
    paper: str
    """The table or section of the paper whose construction this is."""
    tables: tuple[Layout, ...]
    """In the order in which they are shown."""
    protocols: tuple[str, ...] = ("paper",)
    defaults: Mapping[str, str] = field(default_factory=dict)
    """The study's own options, where nothing else is asked for."""

    def title(self, table: Layout, options: StudyOptions) -> str:
        """Title of a table under some options."""
        words = {**self.defaults, **options.extra}
        return table.title.format(alpha=options.alpha, serving=options.serving, **words)

    def result(
        self, found: Iterable[Row | str], options: StudyOptions, remarks: Sequence[str] = ()
    ) -> StudyResult:
        """Sort rows into tables, each in its order; a text is a remark, said once."""
        rows: dict[str, list[tuple[Cell, ...]]] = {table.name: [] for table in self.tables}
        texts = list(remarks)
        for each in found:
            if isinstance(each, str):
                texts.append(each)
            else:
                rows[each.layout.name].append(each.cells)
        tables = tuple(
            Table(t.name, self.title(t, options), t.columns, tuple(rows[t.name]), t.note)
            for t in self.tables
        )
        said = tuple(dict.fromkeys(texts))
        return StudyResult(self.study, self.paper, self.protocols, tables, said)
