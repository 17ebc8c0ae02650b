"""What tests of studies share: the paper's archives as sources, and reading tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stopadvisor.runs.sources import Source, open_source
from stopadvisor.studies.study import Cell, StudyOptions, StudyResult
from tests.material import ARCHIVES

NAMES = ["mixed", "early"]
QUICK = StudyOptions(resamples=400)


def archive(name: str, tmp_path: Path) -> Source:
    return open_source(ARCHIVES / f"{name}.npz", root=tmp_path)


def rows_of(result: StudyResult, name: str) -> list[dict[str, Cell]]:
    """Rows of a table, by column."""
    table = next(table for table in result.tables if table.name == name)
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def row_of(result: StudyResult, name: str, **where: Any) -> dict[str, Any]:
    """The one row of a table with these cells."""
    found = [r for r in rows_of(result, name) if all(r[k] == v for k, v in where.items())]
    assert len(found) == 1, found
    return found[0]
