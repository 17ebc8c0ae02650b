"""What a study takes and returns: sources in, tables out.

Knows no study by name, and neither files nor formats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stopadvisor.runs.sources import Source

__all__ = ["Cell", "Column", "Study", "StudyOptions", "StudyResult", "Table", "Unit"]

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


@dataclass(frozen=True)
class Table:
    """Rows of one result."""

    name: str
    """Its key in JSON and its file name in CSV: lower case, with hyphens."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    """Each as long as `columns`."""
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
    delta: float = 0.05
    serving: str = "kv-fork"
    resamples: int = 5000
    seed: int = 20270207
    extra: Mapping[str, str] = field(default_factory=dict)
    """Options of single studies, by name."""


class Study(Protocol):
    """A study's function: `run` of its module."""

    def __call__(self, sources: Sequence[Source], options: StudyOptions) -> StudyResult:
        """Study one or several sources."""
        ...
