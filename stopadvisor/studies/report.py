"""The files of a study, and what `stopadvisor study` returns for all studies or for their list.

The files are JSON and CSV, with cells as they were computed.  Knows no study by name.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stopadvisor.ground.errors import OutputError
from stopadvisor.ground.printable import csv_cell
from stopadvisor.ground.results import to_document
from stopadvisor.runs.storage import encode, make_folder, replace_file, write_json_atomically
from stopadvisor.studies.registry import StudyEntry
from stopadvisor.studies.tables import StudyReport, Table

__all__ = [
    "SkippedStudy",
    "StudyLine",
    "StudyList",
    "StudyReports",
    "listed_studies",
    "table_csv",
    "write_study",
]


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


@dataclass(frozen=True)
class StudyLine:
    """A study that can be run."""

    name: str
    """Its name."""
    help: str
    """What it shows."""
    needs: str
    """Which runs it takes."""
    options: Mapping[str, str]
    """Options that it alone has, for `--set`."""


@dataclass(frozen=True)
class StudyList:
    """`study list --json`."""

    studies: tuple[StudyLine, ...]
    """All of them."""


def listed_studies(entries: Mapping[str, StudyEntry]) -> StudyList:
    """List the studies there are."""
    return StudyList(
        tuple(StudyLine(name, e.help, e.needs, e.options) for name, e in entries.items())
    )


# --- Files ----------------------------------------------------------------------------------------


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


def write_study(report: StudyReport, run: Path) -> None:
    """Write ``STUDY.json``, and each table as ``STUDY.TABLE.csv``, into ``studies/`` of a run."""
    folder = run / FOLDER
    if folder.is_symlink():
        raise OutputError(f"cannot write to {folder}: links in a run directory are not followed")
    make_folder(folder)
    for table in report.tables:
        replace_file(folder / f"{report.study}.{table.name}.csv", encode(table_csv(table)))
    write_json_atomically(folder / f"{report.study}.json", to_document(report))
