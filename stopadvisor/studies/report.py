"""What `stopadvisor study` returns: the tables of a study with its runs and options, and its files.

The files are JSON and CSV, with cells as they were computed.  Knows no study by name.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from stopadvisor.ground.errors import OutputError
from stopadvisor.ground.printable import csv_cell
from stopadvisor.ground.results import to_document
from stopadvisor.runs.access import labels
from stopadvisor.runs.sources import Source
from stopadvisor.runs.storage import encode, make_folder, replace_file, write_json_atomically
from stopadvisor.studies.registry import StudyEntry
from stopadvisor.studies.tables import StudyOptions, StudyResult, Table

__all__ = [
    "SkippedStudy",
    "StudyLine",
    "StudyList",
    "StudyReport",
    "StudyReports",
    "listed_studies",
    "study_report",
    "table_csv",
    "write_study",
]


@dataclass(frozen=True, kw_only=True)
class StudyReport:
    """A study of some runs: `study NAME --json` and `studies/NAME.json`."""

    SCHEMA: ClassVar[None] = None

    schema: int = 1
    """Raised when a program that reads this must change; each study of `study all` has it too."""
    study: str
    """Its name."""
    paper: str
    """Table or section of the paper that it repeats."""
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


def study_report(
    result: StudyResult, sources: Sequence[Source], options: StudyOptions
) -> StudyReport:
    """A result with the names of its runs and its options."""
    return StudyReport(
        study=result.study,
        paper=result.paper,
        protocols=result.protocols,
        runs=tuple(labels(sources)),
        options=options,
        tables=result.tables,
        remarks=result.remarks,
    )


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
