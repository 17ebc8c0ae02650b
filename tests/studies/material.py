"""What tests of studies share: sources, results that are computed once, and reading tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stopadvisor.runs.sources import Source
from stopadvisor.studies.registry import run_study
from stopadvisor.studies.tables import Cell, StudyOptions, StudyReport

NAMES = ["mixed", "early"]
QUICK = StudyOptions(resamples=400)


Archive = Callable[[str], Source]
"""The paper's archive of this name."""
Sums = Callable[[int], Source]
"""A run of so many sums, which nobody may change or open."""
Study = Callable[[Sequence[Source], StudyOptions], StudyReport]
_RESULTS: dict[tuple[Study, tuple[Path, ...], str], StudyReport] = {}


def study(name: str) -> Study:
    """A study by its name, as the command runs it."""
    return partial(run_study, name)


def studied(study: Study, sources: Sequence[Source], options: StudyOptions) -> StudyReport:
    """What a study says of sources that no test changes; asked again, it is not computed again."""
    key = (study, tuple(source.folder for source in sources), repr(options))
    if key not in _RESULTS:
        _RESULTS[key] = study(sources, options)
    return _RESULTS[key]


def rows_of(result: StudyReport, name: str) -> list[dict[str, Cell]]:
    """Rows of a table, by column."""
    table = next(table for table in result.tables if table.name == name)
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def row_of(result: StudyReport, name: str, **where: Any) -> dict[str, Any]:
    """The one row of a table with these cells."""
    found = [r for r in rows_of(result, name) if all(r[k] == v for k, v in where.items())]
    assert len(found) == 1, found
    return found[0]
