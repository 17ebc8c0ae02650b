"""What a report shows, saved when `assess` computes it, and read back.

``figures.json`` stands in a run next to the ``assessment.json`` that it is of.  Reading computes
nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from stopadvisor.assessment.assessed import AssessedRun
from stopadvisor.assessment.choice import Choice
from stopadvisor.certification.issue import CalibratedRun
from stopadvisor.ground.errors import ProbeError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.ground.results import from_document, to_document
from stopadvisor.paper.analysis import Assessed
from stopadvisor.report.figures import Figures, figures_of
from stopadvisor.report.words import shell_quote
from stopadvisor.runs.directory import CALIBRATION, KeptThinking, read_thinking
from stopadvisor.runs.sources import ASSESSMENT, Source, read_assessment, read_calibration
from stopadvisor.runs.storage import write_json_atomically

__all__ = ["FIGURES", "ReportData", "WrittenPage", "read_report", "save_assessment"]

FIGURES = "figures.json"

Saved = TypeVar("Saved")


@dataclass(frozen=True)
class ReportData:
    """All that goes onto a page."""

    result: AssessedRun
    """What `assess` found."""
    calibration: CalibratedRun | None
    figures: Figures
    thinking: Mapping[str, KeptThinking]
    """Of lost questions, by id, where the run keeps it."""
    remarks: tuple[str, ...]
    """What could not be shown, and why."""


@dataclass(frozen=True)
class WrittenPage:
    """`report --json`: a report on disk."""

    run: Path
    """Where the probes are."""
    report: Path
    """The file."""
    bytes: int
    """Its size."""
    protocol: str
    """`deploy`."""
    certified: bool | None
    """Whether `calibrate` certified a rule; null before it."""
    remarks: tuple[str, ...]
    """What could not be shown, and why."""


def save_assessment(source: Source, result: Assessed, choice: Choice | None) -> None:
    """Write an assessment into its run, then the figures of its choice, which the report shows.

    The published analysis has no choice and no report: `study` repeats the paper's figures.
    """
    write_json_atomically(source.folder / ASSESSMENT, to_document(result))
    if choice is not None:
        figures = figures_of(choice, source, _digest(source.folder))
        write_json_atomically(source.folder / FIGURES, to_document(figures))


def read_report(folder: Path) -> ReportData:
    """Read what `assess` and `calibrate` saved in a run.

    Raises
    ------
    ProbeError
        The run was not assessed, or before figures were saved; or a file is damaged.
    """
    document, file = read_assessment(folder), folder / ASSESSMENT
    again = f"`stopadvisor assess {shell_quote(folder)}`"
    if document is None:
        raise ProbeError(f"{folder}: not assessed yet: run {again} first")
    if document.get("protocol") == "paper":
        raise ProbeError(
            f"{folder}: assessed by the paper's protocol, which has no page: run {again} for one; "
            f"`stopadvisor study` repeats the paper's figures"
        )
    figures = _read_figures(folder / FIGURES)
    if figures is None or figures.assessment != _digest(folder):
        raise ProbeError(f"{folder / FIGURES}: not of this assessment.json; run {again} again")
    result = _parsed(AssessedRun, document, file, "assess")
    shown = () if figures.lost is None else figures.lost.shown
    thinking = read_thinking(folder, {example.id for example in shown}) if shown else {}
    calibration, remarks = None, figures.remarks
    if (written := read_calibration(folder)) is not None:
        calibration = _parsed(CalibratedRun, written, folder / CALIBRATION, "calibrate")
        if result.alpha not in (None, calibration.alpha):
            remarks += (
                f"Assessed at alpha = {result.alpha:g}, calibrated at {calibration.alpha:g}: "
                "first screen follows the calibration, pictures the assessment.",
            )
    return ReportData(result, calibration, figures, thinking, remarks)


def _digest(folder: Path) -> str:
    """SHA-256 of the assessment as it stands in the run."""
    return hashlib.sha256((folder / ASSESSMENT).read_bytes()).hexdigest()


def _read_figures(file: Path) -> Figures | None:
    try:
        content = parse_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ProbeError(f"{file}: cannot be read: {error}; assess again") from error
    return _parsed(Figures, content, file, "assess")


def _parsed(kind: type[Saved], content: object, file: Path, command: str) -> Saved:
    try:
        return from_document(kind, content, file)
    except ProbeError as error:
        raise ProbeError(f"{error}; {command} again") from error
