"""The report's data: `assess` saves it in the run, and the page reads it back.

``figures.json``, next to ``assessment.json``, holds the curves of the pictures and the lost
questions, all of fit questions, out of fold.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stopadvisor.assessment.assessed import AssessedRun
from stopadvisor.assessment.choice import Choice
from stopadvisor.assessment.frontier import (
    AlphaSavings,
    Curve,
    Ending,
    accuracy_at_cost,
    endings_of,
    fit_curves,
    fixed_curve,
    savings_by_alpha,
)
from stopadvisor.certification.issue import CalibratedRun
from stopadvisor.ground.errors import ProbeError, WorkloadError
from stopadvisor.ground.json_text import read_object
from stopadvisor.ground.results import from_document, to_document
from stopadvisor.paper.analysis import Assessed
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.probes.table import NO_PROBE
from stopadvisor.report.words import shell_quote
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.runs.directory import CALIBRATION, KeptThinking, RunDirectory, read_thinking
from stopadvisor.runs.imported import IMPORTED
from stopadvisor.runs.sources import ASSESSMENT, Source, read_assessment, read_calibration
from stopadvisor.runs.storage import write_json_atomically
from stopadvisor.workload.questions import read_workload

__all__ = [
    "FIGURES", "Figures", "FrontierFigure", "LostQuestions", "OtherStop", "QuestionExample",
    "ReportData", "TrajectoryStep", "WrittenPage", "read_report", "save_assessment",
]  # fmt: skip

FIGURES = "figures.json"

_LONGEST_TEXT = 1500
"""Longest question text to show, in characters."""
_MOST_LOST = 12
"""Most lost questions to show."""


@dataclass(frozen=True)
class FrontierFigure:
    """Accuracy against cost."""

    rules: tuple[Curve, ...]
    """The learned rule first, where there is one."""
    fixed: Curve
    """Without a rule: every question stopped at one budget, or one rung for everybody."""
    chosen: tuple[str, float, float] | None
    """Rule, cost in percent and accuracy of the advised point; None if it is full thinking."""
    fixed_at_chosen: float | None
    """Accuracy of fixed budgets at the cost of the advised point."""


@dataclass(frozen=True)
class TrajectoryStep:
    """One checkpoint of a question that was still thinking."""

    budget: int
    answer: str | None
    """The forced answer; None where the probes hold no texts."""
    correct: bool
    confidence: float | None
    """None where the server returned no log-probabilities."""


@dataclass(frozen=True)
class OtherStop:
    """Where another rule ends a question."""

    family: str
    position: int | None
    """Thinking tokens; None if it thinks to the end."""
    correct: bool


@dataclass(frozen=True)
class QuestionExample:
    """One lost question, checkpoint by checkpoint."""

    id: str
    question: str | None
    """None if the workload file is gone or never existed."""
    gold: str | None
    trace_tokens: int
    steps: tuple[TrajectoryStep, ...]
    stop: int
    """Index of the step at which the rule stops."""
    family: str
    """The rule's family."""
    others: tuple[OtherStop, ...]
    """Where the other compared rules stop, at thresholds for the same promise."""


@dataclass(frozen=True)
class LostQuestions:
    """Fit questions that full thinking answers right and the advised rule stops wrong."""

    shown: tuple[QuestionExample, ...]
    """The first ones, in the order of the run."""
    n: int
    """Number of all lost questions."""


@dataclass(frozen=True)
class Figures:
    """``figures.json``; a figure is None where the data do not allow it."""

    assessment: str
    """SHA-256 of the ``assessment.json`` that they belong to."""
    frontier: FrontierFigure | None
    alpha: AlphaSavings | None
    lost: LostQuestions | None
    remarks: tuple[str, ...] = ()
    """What could not be shown, and why."""


def _figures_of(choice: Choice, source: Source, assessment: str) -> Figures:
    """Collect the figures of a choice; `assessment` is the SHA-256 of its file."""
    if choice.nothing is not None:
        return Figures(assessment, None, None, None)
    lost = None
    remarks: tuple[str, ...] = ()
    if choice.advised is not None and choice.fit.table.rungs is None:
        texts = _Texts.of(source)
        lost, remarks = _lost_questions(choice, texts), texts.remarks
    return Figures(assessment, _frontier(choice), savings_by_alpha(choice), lost, remarks)


def _frontier(choice: Choice) -> FrontierFigure:
    advised = choice.advised
    rules = [r for r in choice.compared if r.scorer.family != FIXED_BUDGET or r is advised]
    curves, fixed = fit_curves(choice.fit, rules), fixed_curve(choice.fit)
    if advised is None:
        return FrontierFigure(curves, fixed, None, None)
    curve = next(c for c, r in zip(curves, rules, strict=True) if r is advised)
    cost, accuracy = curve.cost[choice.advised_index], curve.accuracy[choice.advised_index]
    chosen = (advised.scorer.family, cost, accuracy)
    return FrontierFigure(curves, fixed, chosen, accuracy_at_cost(fixed, cost))


# --- Lost questions ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Texts:
    """Texts of a run's questions, by question id; empty where it has none."""

    records: Mapping[str, ProbeRecord]
    questions: Mapping[str, str]
    remarks: tuple[str, ...]
    """What lost questions cannot show, and why not."""

    @classmethod
    def of(cls, source: Source) -> _Texts:
        """Read the questions and forced answers of a run."""
        if source.manifest is None:
            remark = "A published archive holds no texts: lost questions show none."
            return cls({}, {}, (remark,))
        records = {r.id: r for r in RunDirectory.load(source.folder).records() if r.sample == 0}
        remarks: tuple[str, ...] = ()
        if source.manifest["engine"]["engine"] == IMPORTED:
            remarks = ("Imported probes bring no questions: lost ones show only answers.",)
        try:
            workload = read_workload(source.manifest["workload"]["path"])
        except WorkloadError:
            gone = "The workload file is gone, so lost questions show no text."
            return cls(records, {}, remarks or (gone,))
        texts = {q.key: "\n\n".join(m["content"] for m in q.messages) for q in workload.questions}
        return cls(
            records, {i: texts[r.key] for i, r in records.items() if r.key in texts}, remarks
        )


def _lost_questions(choice: Choice, texts: _Texts) -> LostQuestions | None:
    endings = endings_of(choice)
    mine = next((ending for ending in endings if ending.rule is choice.advised), None)
    if mine is None:
        return None
    others = [e for e in endings if e.rule.scorer.family != mine.rule.scorer.family]
    table = mine.rule.view
    lost = (mine.positions != NO_PROBE) & (table.samples == 0) & table.full_correct & ~mine.correct
    rows = np.flatnonzero(lost).tolist()
    return LostQuestions(
        tuple(_example(row, mine, others, texts) for row in rows[:_MOST_LOST]), len(rows)
    )


def _example(row: int, mine: Ending, others: Sequence[Ending], texts: _Texts) -> QuestionExample:
    table = mine.rule.view
    name = table.ids[row]
    record, question = texts.records.get(name), texts.questions.get(name)
    positions = table.positions[row]
    answers = {} if record is None else {c.budget: _short(c.answer) for c in record.checkpoints}
    confidence = np.exp(table.mean_logprob[row])
    known = np.isfinite(confidence) & (table.entropy_source != "none")
    steps = tuple(
        TrajectoryStep(
            int(positions[j]),
            answers.get(int(positions[j])),
            bool(table.correct_online[row, j]),
            float(confidence[j]) if known[j] else None,
        )
        for j in np.flatnonzero((positions != NO_PROBE) & ~table.ended[row]).tolist()
    )
    ends = tuple(
        OtherStop(
            other.rule.scorer.family,
            None if other.positions[row] == NO_PROBE else int(other.positions[row]),
            bool(other.correct[row]),
        )
        for other in others
    )
    return QuestionExample(
        name,
        None if question is None else _short(question, _LONGEST_TEXT),
        None if record is None or record.gold is None else _short(record.gold),
        int(table.trace_tokens[row]),
        steps,
        int(mine.stops[row]),
        mine.rule.scorer.family,
        ends,
    )


def _short(text: str, most: int = 200) -> str:
    """Strip a text and cut it at the length that a page shows."""
    text = text.strip()
    return text if len(text) <= most else f"{text[:most]} …"


# --- In a run ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReportData:
    """Everything that the page shows."""

    result: AssessedRun
    """The assessment."""
    calibration: CalibratedRun | None
    figures: Figures
    thinking: Mapping[str, KeptThinking]
    """Thinking of the lost questions, by id, where the run keeps it."""
    remarks: tuple[str, ...]
    """What could not be shown, and why."""


@dataclass(frozen=True)
class WrittenPage:
    """`report --json`: a report on disk."""

    run: Path
    """The run, or the results folder of an archive."""
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
    """Write an assessment into its run, then the report's figures.

    `choice` is None under the paper's protocol, which has no report.
    """
    write_json_atomically(source.folder / ASSESSMENT, to_document(result))
    if choice is not None:
        figures = _figures_of(choice, source, _digest(source.folder))
        write_json_atomically(source.folder / FIGURES, to_document(figures))


def read_report(folder: Path) -> ReportData:
    """Read what `assess` and `calibrate` saved in a run.

    Raises
    ------
    ProbeError
        The run was not assessed, it has no figures of this assessment, or a file is damaged.
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
    figures, saved = None, folder / FIGURES
    if saved.exists():
        content = read_object(saved, ProbeError, "; assess again")
        figures = from_document(Figures, content, saved, "; assess again")
    if figures is None or figures.assessment != _digest(folder):
        raise ProbeError(f"{saved}: belongs to another assessment.json; run {again} again")
    result = from_document(AssessedRun, document, file, "; assess again")
    shown = () if figures.lost is None else figures.lost.shown
    thinking = read_thinking(folder, {example.id for example in shown}) if shown else {}
    calibration, remarks = None, figures.remarks
    if (written := read_calibration(folder)) is not None:
        calibration = from_document(
            CalibratedRun, written, folder / CALIBRATION, "; calibrate again"
        )
        if result.alpha not in (None, calibration.alpha):
            remarks += (
                f"Assessed at alpha = {result.alpha:g}, calibrated at {calibration.alpha:g}: "
                "the first screen follows the calibration, pictures the assessment.",
            )
    return ReportData(result, calibration, figures, thinking, remarks)


def _digest(folder: Path) -> str:
    return hashlib.sha256((folder / ASSESSMENT).read_bytes()).hexdigest()
