"""A study as files: JSON, and its tables as CSV.

Cells stay as they were computed; nothing is rounded here.  Knows no study by name and no screen.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from stopadvisor.ground.errors import OutputError
from stopadvisor.ground.printable import csv_cell
from stopadvisor.ground.results import to_document
from stopadvisor.runs.storage import encode, make_folder, replace_file, write_json_atomically
from stopadvisor.studies.report import StudyReport
from stopadvisor.studies.study import Table

__all__ = ["table_csv", "write_csv", "write_study"]

FOLDER = "studies"
"""In a run directory, or in the results folder of an archive."""


def table_csv(table: Table) -> str:
    """A table as CSV with a header line; empty where there is no value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in table.columns])
    writer.writerows(
        [["" if cell is None else csv_cell(cell) for cell in row] for row in table.rows]
    )
    return text.getvalue()


def write_csv(result: StudyReport, folder: Path) -> list[Path]:
    """Write each table as ``STUDY.TABLE.csv``; returns the files."""
    make_folder(folder)
    files = []
    for table in result.tables:
        file = folder / f"{result.study}.{table.name}.csv"
        replace_file(file, encode(table_csv(table)))
        files.append(file)
    return files


def write_study(report: StudyReport, run: Path) -> None:
    """Write a study and its tables into ``studies/`` of a run."""
    folder = run / FOLDER
    if folder.is_symlink():
        raise OutputError(f"cannot write to {folder}: links in a run directory are not followed")
    write_csv(report, folder)
    write_json_atomically(folder / f"{report.study}.json", to_document(report))
