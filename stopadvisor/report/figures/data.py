"""What the report's pictures show, under either protocol in the same shapes.

A figure holds numbers and the names of what they are: `deploy` and `paper` fill it, a run keeps it,
`charts` draws it and `captions` puts it into words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stopadvisor.assessment.diagnostics import Curve, Stops, choose_examples
from stopadvisor.assessment.signals import CheckpointAccuracy, Signal
from stopadvisor.ground.arrays import Numbers
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.probes.table import NO_PROBE
from stopadvisor.rules.losses import LossName
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.imported import IMPORTED
from stopadvisor.runs.sources import Source
from stopadvisor.stats.reliability import Reliability
from stopadvisor.workload.questions import read_workload

__all__ = [
    "AlphaFigure",
    "CalibratedFigures",
    "CheckpointFigure",
    "Examples",
    "Figures",
    "FrontierFigure",
    "QuestionExample",
    "ReliabilityFigure",
    "RiskFigure",
    "Texts",
    "TrajectoryStep",
    "examples",
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
    probabilities: tuple[float, ...] | None
    """Probability to certify a saving with these calibration questions; deploy protocol only."""
    alpha: float
    """The target asked for."""
    basis: str


@dataclass(frozen=True)
class ReliabilityFigure:
    """Scores read as probabilities, against what came true."""

    scores: Mapping[str, Reliability]
    basis: str


@dataclass(frozen=True)
class CheckpointFigure:
    """Accuracy of stopping everything at a checkpoint, and who is still thinking there."""

    data: CheckpointAccuracy
    basis: str


@dataclass(frozen=True)
class TrajectoryStep:
    """One checkpoint of an example."""

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
class QuestionExample:
    """One question on its way through the checkpoints."""

    kind: str
    """``win``, ``loss`` or ``oscillation``."""
    id: str
    question: str | None
    """None where the file is gone, or never was."""
    gold: str | None
    natural: str | None
    """Visible answer of full thinking."""
    full_correct: bool
    trace_tokens: int
    steps: tuple[TrajectoryStep, ...]
    stop: int | None
    """Index of the step at which the rule stops; None: never, or no rule is advised."""
    threshold: float | None
    family: str | None


@dataclass(frozen=True)
class Examples:
    """Questions on their way."""

    questions: tuple[QuestionExample, ...]
    """One of each kind, where there is one."""
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
    reliability: ReliabilityFigure | None
    checkpoints: CheckpointFigure | None
    signals: tuple[Signal, ...]
    signals_basis: str
    examples: Examples
    remarks: tuple[str, ...] = ()
    """What could not be shown, and why."""


@dataclass(frozen=True)
class CalibratedFigures:
    """What `calibrate` changes on the page of its run; None: as `assess` left it."""

    frontier: FrontierFigure | None
    risk: RiskFigure | None
    examples: Examples | None


_LONGEST_TEXT = 1500
"""Characters of a question that are shown."""


@dataclass(frozen=True)
class Texts:
    """Words for the questions of a run, by question id; empty where it has none."""

    records: Mapping[str, ProbeRecord]
    questions: Mapping[str, str]
    remarks: tuple[str, ...]
    """What examples cannot show, and why."""

    @classmethod
    def of(cls, source: Source) -> Texts:
        """Read questions and forced answers of a run."""
        if source.manifest is None:
            remark = "A published archive holds no texts: examples show no question or answer."
            if source.simulated:
                remark = "Simulated probes have no texts: examples show no question."
            return cls({}, {}, (remark,))
        if source.ladder is not None:
            return cls({}, {}, ())
        records = {r.id: r for r in RunDirectory.load(source.folder).records() if r.sample == 0}
        remarks: tuple[str, ...] = ()
        if source.simulated:
            remarks = ("Simulated probes have no texts: examples show no question.",)
        elif source.manifest["engine"]["engine"] == IMPORTED:
            remarks = ("Imported probes bring no questions along: examples show answers alone.",)
        try:
            workload = read_workload(source.manifest["workload"]["path"])
        except WorkloadError:
            gone = "The workload file is gone, so that examples show no question."
            return cls(records, {}, remarks or (gone,))
        texts = {q.key: "\n\n".join(m["content"] for m in q.messages) for q in workload.questions}
        return cls(
            records, {i: texts[r.key] for i, r in records.items() if r.key in texts}, remarks
        )


def examples(table: GradedTable, stops: Stops | None, texts: Texts) -> tuple[QuestionExample, ...]:
    """The chosen examples, with what was forced at each checkpoint."""
    return tuple(
        _example(found.kind, table, found.row, stops, texts)
        for found in choose_examples(table, stops)
    )


def _example(
    kind: str, table: GradedTable, row: int, stops: Stops | None, texts: Texts
) -> QuestionExample:
    name = table.ids[row]
    record = texts.records.get(name)
    question = texts.questions.get(name)
    if question is not None and len(question) > _LONGEST_TEXT:
        question = question[:_LONGEST_TEXT] + " …"
    stop = None
    if stops is not None and stops.stops[row] < table.n_checkpoints:
        stop = int(stops.stops[row])
    positions = table.positions[row]
    answers = {} if record is None else {c.budget: c.answer.strip() for c in record.checkpoints}
    ended, confidence = table.ended[row], np.exp(table.mean_logprob[row])
    known = np.isfinite(confidence) & (table.entropy_source != "none")
    steps = tuple(
        TrajectoryStep(
            int(positions[j]),
            answers.get(int(positions[j])),
            bool(table.correct_online[row, j]),
            float(confidence[j]) if known[j] else None,
            None if ended[j] or stops is None else float(stops.scores[row, j]),
            bool(ended[j]),
        )
        for j in np.flatnonzero(positions != NO_PROBE).tolist()
    )
    return QuestionExample(
        kind,
        name,
        question,
        None if record is None else record.gold,
        None if record is None or record.natural_answer is None else record.natural_answer.strip(),
        bool(table.full_correct[row]),
        int(table.trace_tokens[row]),
        steps,
        stop,
        None if stops is None else stops.threshold,
        None if stops is None else stops.family,
    )
