"""How a study declares its tables: a class for each, whose fields are its columns.

One declaration says a column's key, title, unit and type; columns, cells, JSON and CSV follow from
it.  Knows no study, and formats nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self, dataclass_transform

from stopadvisor.stats.bootstrap import Interval
from stopadvisor.studies.study import Cell, Column, StudyOptions, StudyResult, Table, Unit

__all__ = ["Ends", "Outline", "Row", "RunRow", "cells", "column", "columns", "ends", "part"]

Ends = Interval | tuple[float, float] | None
"""Both ends of an interval; None where there is none."""


def column(title: str, unit: Unit = "", of: str = "") -> Any:
    """Declare a field of a `Row` as a column; the field's name is the column's key.

    `of` says by which attributes, with dots between them, `Row.of` comes to the value; without it
    by the field's name.
    """
    return field(metadata={"column": (title, unit), "of": of})


def ends(title: str, unit: Unit = "", of: str = "") -> Any:
    """Declare a field ``NAME_ci`` as two columns: ``NAME_low`` with this title, ``NAME_high``."""
    return field(metadata={"ends": (title, unit), "of": of})


def part(kind: type[Row]) -> Any:
    """Declare a field as all columns of another row class; empty cells where its value is None."""
    return field(metadata={"part": kind})


@dataclass_transform(frozen_default=True, field_specifiers=(column, ends, part))
class Row:
    """A row of a table; every subclass is made a frozen dataclass.

    A subclass that stands for a table says so where it is defined:
    ``class Curve(Row, table="curves", title="The curves")``.
    """

    table: ClassVar[str] = ""
    """The table's key in JSON and its file name in CSV."""
    title: ClassVar[str] = ""
    """May name ``{alpha}``, ``{serving}`` and options of the study."""
    note: ClassVar[str] = ""

    def __init_subclass__(cls, *, table: str = "", title: str = "", note: str = "") -> None:
        cls.table, cls.title, cls.note = table, title, note
        dataclass(frozen=True)(cls)

    @classmethod
    def of(cls, found: object, **own: Any) -> Self:
        """Make a row of what was found, but for the fields that are given.

        A value is None where something on the way to it is.
        """
        for each in fields(cls):  # type: ignore[arg-type]  # every subclass is a dataclass
            if each.name not in own:
                value = found
                for name in (each.metadata["of"] or each.name).split("."):
                    value = None if value is None else getattr(value, name)
                own[each.name] = value
        return cls(**own)


class RunRow(Row):
    """A row about one run, which its first column names."""

    run: str = column("Run")


def columns(kind: type[Row]) -> tuple[Column, ...]:
    """Columns of a row class, in the order of its fields."""
    found: list[Column] = []
    for each in fields(kind):  # type: ignore[arg-type]  # Row makes every subclass a dataclass
        if "part" in each.metadata:
            found += columns(each.metadata["part"])
        elif "ends" in each.metadata:
            title, unit = each.metadata["ends"]
            stem = each.name.removesuffix("_ci")
            found += [Column(f"{stem}_low", title, unit), Column(f"{stem}_high", "high", unit)]
        else:
            found.append(Column(each.name, *each.metadata["column"]))
    return tuple(found)


def cells(row: Row) -> tuple[Cell, ...]:
    """Values of a row, one for each of its columns."""
    found: list[Cell] = []
    for each in fields(row):  # type: ignore[arg-type]  # as above
        value = getattr(row, each.name)
        if "column" in each.metadata:
            found.append(value)
        elif "ends" in each.metadata:
            found += (
                [value.low, value.high] if isinstance(value, Interval) else value or (None,) * 2
            )
        elif value is None:
            found += [None] * len(columns(each.metadata["part"]))
        else:
            found += cells(value)
    return tuple(found)


@dataclass(frozen=True)
class Outline:
    """What a study says of itself before it runs."""

    study: str
    paper: str
    """The table or section of the paper whose construction this is."""
    tables: tuple[type[Row], ...]
    """In the order in which they are shown."""
    protocols: tuple[str, ...] = ("paper", "deploy")
    defaults: Mapping[str, str] = field(default_factory=dict)
    """The study's own options, where nothing else is asked for."""

    def title(self, kind: type[Row], options: StudyOptions) -> str:
        """Title of a table under some options."""
        words = {**self.defaults, **options.extra}
        return kind.title.format(alpha=options.alpha, serving=options.serving, **words)

    def result(
        self, found: Iterable[Row | str], options: StudyOptions, remarks: Sequence[str] = ()
    ) -> StudyResult:
        """Sort what a study found into its tables.

        `found` holds rows in their order within each table; a text in it is a remark, behind those
        of `remarks`.
        """
        rows: dict[type[Row], list[tuple[Cell, ...]]] = {kind: [] for kind in self.tables}
        said = list(remarks)
        for each in found:
            if isinstance(each, str):
                said.append(each)
            else:
                rows[type(each)].append(cells(each))
        tables = tuple(
            Table(
                kind.table, self.title(kind, options), columns(kind), tuple(rows[kind]), kind.note
            )
            for kind in self.tables
        )
        return StudyResult(self.study, self.paper, self.protocols, tables, tuple(said))
