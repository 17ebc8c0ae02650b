"""Certify lost answers if few calibration questions have gold.

A reply that equals the natural answer in normal form takes its grade.  Only a question whose reply
differs can be lost, so only such questions need labels, and only while a label can change a
decision.  With a planned number M of labels, the first M differing replies at each threshold are a
sample, and the exact test also uses the number that differ.  A sampled reply without a label counts
as lost, which can only withhold a certificate.

Rules are chosen by agreement, and the look is recorded with the order of asking before any question
is shown or any label read.  The caller holds the run's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from stopadvisor.answers.grading import Grader
from stopadvisor.assessment.choice import Choice
from stopadvisor.collection.grades import (
    GoldGrade,
    SettledLabels,
    answers_at,
    as_graded,
    grade_by,
    settle,
)
from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.probes.outcomes import CalibrationQuestions, GradedTable
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.rules.losses import LOST
from stopadvisor.rules.scorer import Scorer
from stopadvisor.runs.directory import RunDirectory, digest_of
from stopadvisor.runs.labels import LabelFile
from stopadvisor.runs.replies import ReplyRecord
from stopadvisor.runs.sources import Source
from stopadvisor.stats.adaptive_labels import (
    AskingPlan,
    LabelForecast,
    LabelTest,
    asking_order,
    forecast,
    preferred_sample,
)

__all__ = [
    "Grades", "LabelCounts", "LabelRun", "LabelledRun", "Labelling", "asking_plan", "at_worst",
    "label_tests", "may_be_lost", "tested_deltas",
]  # fmt: skip

# --- The test with few labels ---------------------------------------------------------------------

Grades = Mapping[int, GoldGrade | None]
"""Grade by row of the table; None (nobody can tell) counts as lost if the reply differs."""


def may_be_lost(view: GradedTable) -> BoolArray:
    """Whether a label could show that a stop is lost, (n_questions, n_probes + 1).

    Only if there is a natural answer and the reply differs from it.
    """
    reply, full = view.stop_codes, view.full_codes[:, None]
    found = np.zeros((view.n_questions, view.n_checkpoints + 1), dtype=np.bool_)
    found[:, :-1] = view.live & (full >= 0) & (reply != full)
    return found


def at_worst(table: CalibrationQuestions, grades: Grades) -> CalibrationQuestions:
    """Grade questions by their labels; a differing reply without a label counts as lost.

    On this table the exact test passes the same thresholds as `stats.adaptive_labels.walk`.
    """
    answered = table.full_codes >= 0
    agrees = (table.stop_codes == table.full_codes[:, None]) & answered[:, None]
    right, full = agrees.copy(), answered.copy()
    for row, grade in grades.items():
        if grade is None:
            continue
        found = [grade.replies.get(budget, False) for budget in table.positions[row].tolist()]
        right[row] = np.where(agrees[row], grade.natural, found)
        full[row] = grade.natural and answered[row]
    outcomes = replace(table.outcomes, correct=right, natural_correct=full)
    if table.on_stop == "answer":
        outcomes = replace(outcomes, visible_correct=right)
    return CalibrationQuestions.of(replace(table.observations, by_gold=None), outcomes)


def asking_plan(choice: Choice, order: IntArray, planned: int | None = None) -> AskingPlan:
    """Plan for a number of labels, a sample if fit questions prefer it; without one, label all."""
    if planned is None:
        return AskingPlan(order)
    sequence, settings = choice.sequences[0], choice.settings
    sample = preferred_sample(
        sequence.curve.each(may_be_lost(sequence.view)),
        sequence.savings,
        (order.size, planned),
        (settings.alpha, settings.delta),
        rng=np.random.default_rng(settings.seed),
    )
    return AskingPlan(order, sample)


def tested_deltas(choice: Choice, plan: AskingPlan) -> tuple[float, ...]:
    """Error probability of each sequence's test; their sum is at most delta."""
    if not plan.is_sample:
        return choice.deltas(plan.order.size)
    # The test of a sample may use all of delta, so nothing is left for a second sequence.
    return (choice.settings.delta, 0.0)[: len(choice.sequences)]


def label_tests(
    choice: Choice, table: CalibrationQuestions, plan: AskingPlan
) -> tuple[LabelTest, ...]:
    """The tests of `certification.calibration`, before any label is known."""
    settings, found = choice.settings, []
    for sequence, delta in zip(choice.sequences, tested_deltas(choice, plan), strict=True):
        differs = _at_thresholds(sequence.scorer, sequence.thresholds, table, may_be_lost)
        unknown = np.zeros_like(differs)
        found.append(plan.test(differs, unknown, sequence.savings, settings.alpha, delta))
    return tuple(found)


def _at_thresholds(
    scorer: Scorer,
    thresholds: FloatArray,
    table: GradedTable,
    of_stops: Callable[[GradedTable], BoolArray],
) -> BoolArray:
    """Evaluate a property of stops at every threshold, (n_questions, n_thresholds)."""
    view = scorer.view(table)
    return scorer.curve(view, thresholds).each(of_stops(view))


# --- Asking ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelCounts:
    """How many labels there are, and what more would gain."""

    workload: int
    """Calibration questions whose gold came with the workload."""
    asked: int
    """Other questions shown to a labeller."""
    used: int
    """Questions among these whose right answer is settled."""
    cannot_tell: int
    """Questions whose labeller could not tell; they count as lost."""
    disagreeing: int
    """Questions that two labellers answered differently; they count as lost."""
    more_labels: int
    """Expected number of labels still worth asking for."""
    more_saving_pp: float
    """Points of net saving that these are expected to add."""


@dataclass(frozen=True)
class LabelledRun:
    """`label --json`: the labels of a run, and what they certify."""

    run: str
    """The run directory."""
    alpha: float
    """The share of lost answers to certify."""
    delta: float
    """1 minus the confidence."""
    n: int
    """Calibration questions; all of them count."""
    planned: int | None
    """Number of labels planned with `--labels`."""
    sampled: int | None
    """If fit questions prefer a sample, its size: of the replies that differ at a threshold this
    many count, in an order fixed beforehand; null if all count."""
    labels: LabelCounts
    """Labels there are, and what more would buy."""
    certified_saving_pct: float
    """Net saving that these labels certify, as measured on fit questions."""
    labellers: Mapping[str, int]
    """Number of questions labelled, by labeller."""
    disagreements: tuple[str, ...]
    """Ids of the questions that two labellers answered differently."""
    file: str
    """File of the labels."""
    exported: str | None
    """The sheet written with `--export`."""
    n_exported: int | None
    """Number of questions on it."""


@dataclass(frozen=True)
class Labelling:
    """Calibration questions to label, and the plan that says which labels count."""

    choice: Choice
    questions: CalibrationQuestions
    """Questions that the test counts, graded by agreement."""
    salt: str
    labels: int | None = None
    """Number of labels planned; None for every label that can change a decision."""

    @cached_property
    def plan(self) -> AskingPlan:
        """Labels that count at each threshold, and the order of asking."""
        order = asking_order(self.questions.keys, self.salt)
        return asking_plan(self.choice, order, self.labels)

    @cached_property
    def _tests(self) -> tuple[LabelTest, ...]:
        return label_tests(self.choice, self.questions, self.plan)

    def state(self, grades: Grades, *, n_draws: int = 50) -> LabelForecast:
        """What these labels certify, which to ask for next, and what further ones would gain."""
        rows = np.array(sorted(grades), dtype=np.int64)
        by_row = {k: grades[int(row)] for k, row in enumerate(rows)}
        graded = at_worst(self.questions.take(rows), by_row)
        tests = []
        for test, sequence in zip(self._tests, self.choice.sequences, strict=True):
            lost = np.zeros_like(test.differs)
            if rows.size:
                scorer, order = sequence.scorer, sequence.thresholds
                lost[rows] = _at_thresholds(scorer, order, graded, lambda view: LOST.of(view) > 0)
            tests.append(replace(test, lost=lost & test.differs))
        known = np.zeros(self.questions.n_questions, dtype=np.bool_)
        known[rows] = True
        rng = np.random.default_rng(0)
        return forecast(tests, known, self.plan.order, rng=rng, n_draws=n_draws)

    def answers(self, row: int, record: ProbeRecord | ReplyRecord) -> list[str]:
        """The different answers to a question, in normal form and ordered by hash.

        So nothing shows which of them comes from a stop.
        """
        if isinstance(record, ReplyRecord):
            forms = {each.normalized for each in record.answered() if each is not None}
        else:
            budgets = set()
            for sequence in self.choice.sequences:
                view = sequence.scorer.view(self.questions.take(np.array([row])))
                budgets |= set(view.positions[may_be_lost(view)[:, :-1]].tolist())
            forms = set(answers_at(record, budgets))
        return sorted(forms, key=lambda form: digest_of(f"{record.key} {form}"))


# --- The labels of a run --------------------------------------------------------------------------


@dataclass(frozen=True)
class KnownLabels:
    """Labels of calibration questions, from people and from the workload."""

    grades: Grades
    settled: SettledLabels
    n_workload: int
    """Questions whose gold came with the workload."""

    def counts(self, state: LabelForecast) -> LabelCounts:
        """Count the labels; `state` is the forecast that follows from them."""
        settled = self.settled
        return LabelCounts(
            self.n_workload,
            len(settled.gold),
            len(settled.gold) - len(settled.cannot_tell) - len(settled.disagreeing),
            len(settled.cannot_tell),
            len(settled.disagreeing),
            round(state.labels),
            state.saving_pp,
        )


@dataclass(frozen=True)
class LabelRun:
    """A run whose look was taken, with its questions to label and the labels given so far."""

    labelling: Labelling
    directory: RunDirectory
    records: Mapping[str, ProbeRecord | ReplyRecord]
    """First traces, or replies of a ladder, by question id."""
    file: LabelFile
    texts: Mapping[str, str] = field(default_factory=dict)
    """Text of each question to show, by key."""

    @classmethod
    def of(cls, source: Source, labelling: Labelling) -> LabelRun:
        """Open the labels of a source's run."""
        run = RunDirectory.load(source.folder)
        records = run.first_records()
        file = LabelFile(run, {name: record.key for name, record in records.items()})
        return cls(labelling, run, records, file)

    def known(self, labels: Mapping[str, Mapping[str, str | None]], grader: Grader) -> KnownLabels:
        """Grade the counted questions; `labels` maps labellers to their gold by question id."""
        records = self.records
        rows = {name: row for row, name in enumerate(self.labelling.questions.ids)}
        own = {name for name in rows if records[name].is_graded}
        mine = {
            labeller: {
                name: gold for name, gold in golds.items() if name in rows and name not in own
            }
            for labeller, golds in labels.items()
        }
        settled = settle(mine, {name: records[name].task for name in rows}, grader)
        golds = {name: gold for name, gold in settled.gold.items() if gold is not None}
        graded = grade_by([records[name] for name in golds], golds.values(), grader)
        found = dict(zip(golds, graded, strict=True))
        found |= {name: as_graded(records[name]) for name in own}
        unsettled = dict.fromkeys(settled.gold.keys() - golds.keys())
        grades = {rows[name]: grade for name, grade in {**found, **unsettled}.items()}
        return KnownLabels(grades, settled, len(own))
