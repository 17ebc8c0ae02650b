"""The files of a study, and what `stopadvisor study all` returns.

The files are JSON and CSV, with cells as they were computed.  Knows no study by name.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from stopadvisor.ground.errors import OutputError
from stopadvisor.ground.printable import csv_cell
from stopadvisor.ground.results import to_document
from stopadvisor.runs.storage import encode, make_folder, replace_file, write_json_atomically
from stopadvisor.studies.tables import StudyReport

__all__ = ["SkippedStudy", "StudyReports", "write_study"]


@dataclass(frozen=True)
class SkippedStudy:
    """A study that the runs do not allow."""

    study: str
    """Its name."""
    reason: str
    """Why not."""


@dataclass(frozen=True)
class StudyReports:
    """All studies of some runs."""

    studies: tuple[StudyReport, ...]
    """Those that these runs allow."""
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
