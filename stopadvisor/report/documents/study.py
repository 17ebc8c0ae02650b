"""What `study --json` prints, and ``studies/NAME.json`` holds: tables, cells as computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypedDict

from stopadvisor.report.documents.fields import Document, fill
from stopadvisor.runs.access import labels
from stopadvisor.runs.sources import Source
from stopadvisor.studies.registry import StudyEntry
from stopadvisor.studies.study import Cell, StudyOptions, StudyResult

__all__ = [
    "SkippedStudy",
    "StudyAllDocument",
    "StudyDocument",
    "StudyListDocument",
    "study_all_document",
    "study_document",
    "study_list_document",
]


class _ColumnFields(TypedDict):
    name: Annotated[str, "Its key, in the CSV file too."]
    title: Annotated[str, "Its heading on a screen."]
    unit: Annotated[str, "Empty, `%`, `pp`, `tokens`, `share`, `chance`, `s` or `$`."]


class _TableFields(TypedDict):
    name: Annotated[str, "Its key, and its name in the CSV file's."]
    title: Annotated[str, "In words."]
    note: Annotated[str, "How to read it."]
    columns: Annotated[list[_ColumnFields], "Names, headings and units."]
    rows: Annotated[
        list[list[Cell]], "Values in the order of the columns; null where there is none."
    ]


class _OptionFields(TypedDict):
    alpha: Annotated[float, "Risk target."]
    delta: Annotated[float, "1 minus the confidence."]
    serving: Annotated[str, "Serving regime, where costs are counted as served."]
    resamples: Annotated[int, "Bootstrap resamples."]
    seed: Annotated[int, "Of the resamples."]
    extra: Annotated[dict[str, str], "What `--set` gave."]


class StudyDocument(Document):
    """`study NAME --json` and `studies/NAME.json`."""

    study: Annotated[str, "Its name."]
    paper: Annotated[str, "Table or section of the paper that it repeats."]
    protocols: Annotated[list[str], "`paper`, `deploy` or both."]
    runs: Annotated[list[str], "Names of the runs in its tables."]
    options: Annotated[_OptionFields, "What was asked."]
    tables: Annotated[list[_TableFields], "What was found."]
    remarks: Annotated[list[str], "What limits the reading."]


class SkippedStudy(TypedDict):
    """A study that the runs do not allow."""

    study: Annotated[str, "Its name."]
    reason: Annotated[str, "Why not."]


class StudyAllDocument(Document):
    """`study all --json`."""

    studies: Annotated[list[StudyDocument], "Those that the runs allow."]
    skipped: Annotated[list[SkippedStudy], "The others."]


class _Entry(TypedDict):
    name: Annotated[str, "Of the study."]
    help: Annotated[str, "What it shows."]
    needs: Annotated[str, "Which runs it takes."]
    options: Annotated[dict[str, str], "Options of its own, for `--set`."]


class StudyListDocument(Document):
    """`study list --json`."""

    studies: Annotated[list[_Entry], "All there are."]


def study_document(
    result: StudyResult, sources: Sequence[Source], options: StudyOptions
) -> StudyDocument:
    """Build the document of one study."""
    return fill(StudyDocument, result, runs=labels(sources), options=options)


def study_all_document(
    studies: list[StudyDocument], skipped: list[SkippedStudy]
) -> StudyAllDocument:
    """Build the document of all studies."""
    return fill(StudyAllDocument, studies=studies, skipped=skipped)


def study_list_document(entries: Mapping[str, StudyEntry]) -> StudyListDocument:
    """Build the document of the studies there are."""
    rows = [fill(_Entry, entry, name=name) for name, entry in entries.items()]
    return fill(StudyListDocument, studies=rows)
