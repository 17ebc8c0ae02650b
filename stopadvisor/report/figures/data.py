"""What the report's pictures show.

A figure holds numbers and the names of what they are: `deploy` fills it, a run keeps it, `charts`
draws it and `captions` puts it into words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, overload

import numpy as np

from stopadvisor.assessment.diagnostics import CheckpointAccuracy, Curve, Endings, Stops, lost_rows
from stopadvisor.ground.arrays import Numbers
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.probes.table import NO_PROBE
from stopadvisor.rules.losses import LossName
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.imported import IMPORTED
from stopadvisor.runs.sources import Source
from stopadvisor.workload.questions import read_workload

__all__ = [
    "AlphaFigure",
    "CalibratedFigures",
    "CheckpointFigure",
    "Figures",
    "FrontierFigure",
    "LostQuestions",
    "OtherStop",
    "QuestionExample",
    "RiskFigure",
    "Texts",
    "TrajectoryStep",
    "lost_questions",
]


@dataclass(frozen=True)
class FrontierFigure:
    """Accuracy against cost."""

    rules: tuple[Curve, ...]
    """The learned rule first, where there is one."""
    fixed: Curve
    """What takes no rule: everything stopped at one budget, or one rung for everybody."""
    chosen: tuple[str, float, float] | None
    """Rule, cost in percent and accuracy of that point; None: full thinking."""
    chosen_name: str
    """``advised point`` or ``exported point``."""
    fixed_at_chosen: float | None
    """Accuracy of fixed budgets at the chosen point's cost; None without one."""
    full_accuracy: float
    cost_of: str
    """What the cost counts."""
    basis: str
    """Whose questions these are."""
    climbs: Literal[True] | None = None
    """Only where the rules climb a ladder, whose reference stands for full thinking."""


@dataclass(frozen=True)
class RiskFigure:
    """Lost-correct risk along the thresholds of one rule, careful ones first."""

    family: str
    thresholds: Numbers
    """As people know them."""
    expected: Numbers | None
    """On fit questions, out of fold; None where the rule was fitted elsewhere."""
    observed: Numbers | None
    """On calibration questions; None until a look has opened them."""
    upper: Numbers | None
    """Upper limit of the observed risk."""
    alpha: float
    limit: float | None
    """Highest share lost that passes the test; None where the bound is in `upper` already."""
    limit_name: str
    marked: int | None
    """Index of the threshold that is advised, or exported; None where nothing is."""
    marked_name: str
    n: int
    """Questions that the shares are of."""
    basis: str
    loss: LossName = "lost"
    """What is counted."""
    first_stops_none: bool = False
    """Whether the first threshold lies above every score."""


@dataclass(frozen=True)
class AlphaFigure:
    """Net saving that each risk target allows; None where no threshold does."""

    alphas: tuple[float, ...]
    savings: Mapping[str, tuple[float | None, ...]]
    """Side (its rule in words) to percent."""
    probabilities: tuple[float, ...]
    """Probability to certify a saving with these calibration questions."""
    alpha: float
    """The target asked for."""
    basis: str


@dataclass(frozen=True)
class CheckpointFigure:
    """Accuracy of stopping everything at a checkpoint, and who is still thinking there."""

    data: CheckpointAccuracy
    basis: str


@dataclass(frozen=True)
class TrajectoryStep:
    """One checkpoint of a question."""

    budget: int
    answer: str | None
    """As it was forced; None where the probes hold no texts."""
    correct: bool
    confidence: float | None
    """None where the server returned no log-probabilities."""
    score: float | None
    """Of the advised rule, as people know it; None where it does not probe here."""
    ended: bool
    """The trace was over by then: online nothing is asked here."""


@dataclass(frozen=True)
class OtherStop:
    """Where another rule ends a question."""

    family: str
    position: int | None
    """Thinking tokens; None: it thinks to the end."""
    correct: bool


@dataclass(frozen=True)
class QuestionExample:
    """One lost question on its way through the checkpoints."""

    id: str
    question: str | None
    """None where the file is gone, or never was."""
    gold: str | None
    full_correct: bool
    trace_tokens: int
    steps: tuple[TrajectoryStep, ...]
    stop: int
    """Index of the step at which the rule stops."""
    family: str
    """The rule."""
    others: tuple[OtherStop, ...] = ()
    """What the other compared rules do, at thresholds of the same promise."""


@dataclass(frozen=True)
class LostQuestions:
    """Questions that full thinking answers right and the rule stops wrong."""

    shown: tuple[QuestionExample, ...]
    """The first of them in the order of the run."""
    n: int
    """How many there are."""
    basis: str
    """Whose questions these are, and whose stops."""


@dataclass(frozen=True)
class Figures:
    """``figures.json``: what `assess` saves for the report; None where the data do not allow it."""

    assessment: str
    """SHA-256 of the ``assessment.json`` that they are of."""
    frontier: FrontierFigure | None
    risk: RiskFigure | None
    alpha: AlphaFigure | None
    checkpoints: CheckpointFigure | None
    lost: LostQuestions | None
    remarks: tuple[str, ...] = ()
    """What could not be shown, and why."""


@dataclass(frozen=True)
class CalibratedFigures:
    """What `calibrate` changes on the page of its run; None: as `assess` left it."""

    frontier: FrontierFigure | None
    risk: RiskFigure | None
    lost: LostQuestions | None


_LONGEST_TEXT = 1500
"""Characters of a question that are shown."""
_MOST_LOST = 12
"""Lost questions that are shown."""


@dataclass(frozen=True)
class Texts:
    """Words for the questions of a run, by question id; empty where it has none."""

    records: Mapping[str, ProbeRecord]
    questions: Mapping[str, str]
    remarks: tuple[str, ...]
    """What lost questions cannot show, and why."""

    @classmethod
    def of(cls, source: Source) -> Texts:
        """Read questions and forced answers of a run."""
        if source.manifest is None:
            remark = "A published archive holds no texts: lost questions show none."
            if source.simulated:
                remark = "Simulated probes have no texts: lost questions show none."
            return cls({}, {}, (remark,))
        if source.ladder is not None:
            return cls({}, {}, ())
        records = {r.id: r for r in RunDirectory.load(source.folder).records() if r.sample == 0}
        remarks: tuple[str, ...] = ()
        if source.simulated:
            remarks = ("Simulated probes have no texts: lost questions show none.",)
        elif source.manifest["engine"]["engine"] == IMPORTED:
            remarks = ("Imported probes bring no questions: lost ones show answers alone.",)
        try:
            workload = read_workload(source.manifest["workload"]["path"])
        except WorkloadError:
            gone = "The workload file is gone, so that lost questions show no text."
            return cls(records, {}, remarks or (gone,))
        texts = {q.key: "\n\n".join(m["content"] for m in q.messages) for q in workload.questions}
        return cls(
            records, {i: texts[r.key] for i, r in records.items() if r.key in texts}, remarks
        )


def lost_questions(
    table: GradedTable, stops: Stops, texts: Texts, basis: str, endings: Sequence[Endings]
) -> LostQuestions:
    """The lost questions of a rule, with what was forced at each checkpoint."""
    rows = np.flatnonzero(lost_rows(table, stops)).tolist()
    shown = tuple(
        replace(_example(table, row, stops, texts), others=_others(endings, row))
        for row in rows[:_MOST_LOST]
    )
    return LostQuestions(shown, len(rows), basis)


def _others(endings: Sequence[Endings], row: int) -> tuple[OtherStop, ...]:
    return tuple(
        OtherStop(
            each.family,
            None if each.positions[row] == NO_PROBE else int(each.positions[row]),
            bool(each.correct[row]),
        )
        for each in endings
    )


def _example(table: GradedTable, row: int, stops: Stops, texts: Texts) -> QuestionExample:
    name = table.ids[row]
    record = texts.records.get(name)
    question = texts.questions.get(name)
    positions = table.positions[row]
    answers = {} if record is None else {c.budget: _short(c.answer) for c in record.checkpoints}
    ended, confidence = table.ended[row], np.exp(table.mean_logprob[row])
    known = np.isfinite(confidence) & (table.entropy_source != "none")
    steps = tuple(
        TrajectoryStep(
            int(positions[j]),
            answers.get(int(positions[j])),
            bool(table.correct_online[row, j]),
            float(confidence[j]) if known[j] else None,
            None if ended[j] else float(stops.scores[row, j]),
            bool(ended[j]),
        )
        for j in np.flatnonzero(positions != NO_PROBE).tolist()
    )
    return QuestionExample(
        name,
        _short(question, _LONGEST_TEXT),
        None if record is None else _short(record.gold),
        bool(table.full_correct[row]),
        int(table.trace_tokens[row]),
        steps,
        int(stops.stops[row]),
        stops.family,
    )


@overload
def _short(text: str, most: int = ...) -> str: ...
@overload
def _short(text: str | None, most: int = ...) -> str | None: ...
def _short(text: str | None, most: int = 200) -> str | None:
    """A text without spaces around it, cut where a page would not show more."""
    text = None if text is None else text.strip()
    return text if text is None or len(text) <= most else f"{text[:most]} …"
