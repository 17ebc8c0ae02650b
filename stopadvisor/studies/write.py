"""A study's result as files and as a JSON document.

Cells stay as they were computed; nothing is rounded here.  Knows no study by name and no screen.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stopadvisor.errors import OutputError
from stopadvisor.runs.access import labels
from stopadvisor.runs.sources import Source
from stopadvisor.runs.storage import encode, replace_file, write_json_atomically
from stopadvisor.studies.study import StudyOptions, StudyResult, Table

__all__ = ["study_document", "table_csv", "write_csv", "write_study"]

FOLDER = "studies"
"""In a run directory, or in the results folder of an archive."""


def study_document(
    result: StudyResult, sources: Sequence[Source], options: StudyOptions
) -> dict[str, Any]:
    """What `study NAME --json` prints; plain JSON values."""
    return {
        "schema": 1,
        "study": result.study,
        "paper": result.paper,
        "protocols": list(result.protocols),
        "runs": labels(sources),
        "options": {
            "alpha": options.alpha,
            "delta": options.delta,
            "serving": options.serving,
            "resamples": options.resamples,
            "seed": options.seed,
            "extra": dict(options.extra),
        },
        "tables": [_table(table) for table in result.tables],
        "remarks": list(result.remarks),
    }


def _table(table: Table) -> dict[str, Any]:
    return {
        "name": table.name,
        "title": table.title,
        "note": table.note,
        "columns": [
            {"name": column.name, "title": column.title, "unit": column.unit}
            for column in table.columns
        ],
        "rows": [list(row) for row in table.rows],
    }


def table_csv(table: Table) -> str:
    """A table as CSV with a header line; empty where there is no value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in table.columns])
    writer.writerows([["" if cell is None else cell for cell in row] for row in table.rows])
    return text.getvalue()


def write_csv(result: StudyResult, folder: Path) -> list[Path]:
    """Write each table as ``STUDY.TABLE.csv``; returns the files.

    Raises
    ------
    OutputError
        The folder cannot be made or written.
    """
    _make(folder)
    files = []
    for table in result.tables:
        file = folder / f"{result.study}.{table.name}.csv"
        replace_file(file, encode(table_csv(table)))
        files.append(file)
    return files


def write_study(
    result: StudyResult, sources: Sequence[Source], options: StudyOptions
) -> dict[str, Any]:
    """Write document and tables into ``studies/`` of the first run; returns the document.

    Raises
    ------
    OutputError
        The folder cannot be made or written.
    """
    folder = sources[0].folder / FOLDER
    document = study_document(result, sources, options)
    write_csv(result, folder)
    write_json_atomically(folder / f"{result.study}.json", document)
    return document


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make {folder}: {error.strerror or error}") from error
