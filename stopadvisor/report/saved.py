"""What a report shows, saved when `assess` and `calibrate` compute it, and read back.

Two kinds of files stand in a run next to ``assessment.json``: ``figures.json`` of `assess`, and one
of `calibrate` for each policy, named for its digest.  Reading computes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from stopadvisor.assessment.fit_assessment import FitAssessment
from stopadvisor.certification.calibrated import CalibratedRun
from stopadvisor.certification.issue import Issued
from stopadvisor.ground.errors import ProbeError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.ground.results import from_document, to_document
from stopadvisor.paper.analysis import PaperAssessment
from stopadvisor.report.assessed import Assessed, AssessedRun, alpha_of
from stopadvisor.report.figures.data import CalibratedFigures, Figures, Texts
from stopadvisor.report.figures.deploy import calibrated_figures, deploy_figures
from stopadvisor.report.words import shell_quote
from stopadvisor.runs.directory import CALIBRATION
from stopadvisor.runs.sources import ASSESSMENT, Source, read_assessment, read_calibration
from stopadvisor.runs.storage import write_json_atomically
from stopadvisor.runs.thinking import KeptThinking, read_thinking

__all__ = [
    "FIGURES", "ReportData", "WrittenPage", "read_report", "save_assessment", "save_calibration",
]  # fmt: skip

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


def save_assessment(assessment: FitAssessment | PaperAssessment, result: Assessed) -> None:
    """Write an assessment into its run, then the figures that its report shows.

    The published analysis has no report: `study` repeats the paper's figures.
    """
    source = assessment.source
    write_json_atomically(source.folder / ASSESSMENT, to_document(result))
    if isinstance(assessment, FitAssessment):
        figures = deploy_figures(assessment.choice, Texts.of(source), _digest(source.folder))
        write_json_atomically(source.folder / FIGURES, to_document(figures))


def save_calibration(source: Source, issued: Issued) -> None:
    """Write what a calibration changes on the page, where its policy is in the run."""
    if Path(issued.result.policy).parent == source.folder:
        figures = calibrated_figures(issued.choice, issued.risk, Texts.of(source))
        file = _calibrated_file(source.folder, issued.result.digest)
        write_json_atomically(file, to_document(figures))


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
    figures = _read(Figures, folder / FIGURES, "assess")
    if figures is None or figures.assessment != _digest(folder):
        raise ProbeError(f"{folder / FIGURES}: not of this assessment.json; run {again} again")
    result = _parsed(AssessedRun, document, file, "assess")
    written, remarks = read_calibration(folder), list(figures.remarks)
    if written is None:
        return ReportData(result, None, figures, _thinking(folder, figures), tuple(remarks))
    calibration = _parsed(CalibratedRun, written, folder / CALIBRATION, "calibrate")
    changed = _read(CalibratedFigures, _calibrated_file(folder, calibration.digest), "calibrate")
    if changed is None:
        remarks.append(
            "Calibrated before figures were saved: pictures show fit questions and the advised "
            "rule. The same `stopadvisor calibrate` again saves them, and takes no new look."
        )
    else:
        figures = replace(
            figures,
            frontier=changed.frontier or figures.frontier,
            risk=changed.risk or figures.risk,
            lost=changed.lost or figures.lost,
        )
    if calibration.alpha != alpha_of(result):
        remarks.append(
            f"Assessed at alpha = {alpha_of(result):g}, calibrated at {calibration.alpha:g}: "
            "first screen and risk picture follow the calibration."
        )
    return ReportData(result, calibration, figures, _thinking(folder, figures), tuple(remarks))


def _thinking(folder: Path, figures: Figures) -> dict[str, KeptThinking]:
    """What the model thought about lost questions, as far as the run keeps it."""
    shown = () if figures.lost is None else figures.lost.shown
    return read_thinking(folder, {example.id for example in shown}) if shown else {}


def _digest(folder: Path) -> str:
    """SHA-256 of the assessment as it stands in the run."""
    return hashlib.sha256((folder / ASSESSMENT).read_bytes()).hexdigest()


def _calibrated_file(folder: Path, digest: str) -> Path:
    return folder / f"figures-{digest[:16]}.json"


def _read(kind: type[Saved], file: Path, command: str) -> Saved | None:
    try:
        content = parse_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ProbeError(f"{file}: cannot be read: {error}; {command} again") from error
    return _parsed(kind, content, file, command)


def _parsed(kind: type[Saved], content: object, file: Path, command: str) -> Saved:
    try:
        return from_document(kind, content, file)
    except ProbeError as error:
        raise ProbeError(f"{error}; {command} again") from error
