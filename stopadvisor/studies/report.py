"""What `stopadvisor study` returns: a study with the runs and options that it was made of, or all.

Its files are JSON and CSV, where cells stay as they were computed.  Knows no study by name.
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
    "write_csv",
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
    """What was asked."""
    tables: tuple[Table, ...]
    """What came of it."""
    remarks: tuple[str, ...]
    """What limits the reading."""


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
    """Those that the runs allow."""
    skipped: tuple[SkippedStudy, ...]
    """The others."""


@dataclass(frozen=True)
class StudyLine:
    """A study that can be asked for."""

    name: str
    """Of the study."""
    help: str
    """What it shows."""
    needs: str
    """Which runs it takes."""
    options: Mapping[str, str]
    """Options of its own, for `--set`."""


@dataclass(frozen=True)
class StudyList:
    """The studies there are."""

    studies: tuple[StudyLine, ...]
    """All there are."""


def study_report(
    result: StudyResult, sources: Sequence[Source], options: StudyOptions
) -> StudyReport:
    """Name the runs and the options that a study was made of."""
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
