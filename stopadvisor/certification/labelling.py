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

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from stopadvisor.answers.grading import Grader
from stopadvisor.answers.normal_form import extract_forced, extract_natural, normalize
from stopadvisor.assessment.choice import Choice
from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.probes.outcomes import CalibrationQuestions, GradedTable
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.rules.losses import LOST
from stopadvisor.rules.scorer import Scorer
from stopadvisor.runs.directory import RunDirectory, digest_of
from stopadvisor.runs.labels import LabelFile
from stopadvisor.runs.replies import ReplyRecord
from stopadvisor.runs.sources import Source
from stopadvisor.runs.verdicts import grade_records, ungraded
from stopadvisor.stats.adaptive_labels import (
    AskingPlan,
    LabelForecast,
    LabelTest,
    asking_order,
    forecast,
    preferred_sample,
)

__all__ = [
    "GoldGrade", "Grades", "LabelCounts", "LabelRun", "LabelledRun", "Labelling", "asking_plan",
    "at_worst", "grade_by", "label_tests", "may_be_lost", "tested_deltas",
]  # fmt: skip

# --- The test with few labels ---------------------------------------------------------------------


@dataclass(frozen=True)
class GoldGrade:
    """Which answers to one question are right."""

    natural: bool
    replies: Mapping[int, bool]
    """Replies after a stop, by thinking tokens before it; those of a ladder, by number from 1."""


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
    neither: int = 0
    """Questions among those used whose label equals no recorded answer; they cannot be lost."""


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
            forms = _forms(record, budgets)
        return sorted(forms, key=lambda form: digest_of(f"{record.key} {form}"))


def _forms(record: ProbeRecord, budgets: Container[int]) -> set[str]:
    """Normal forms of the natural answer, and of the replies after stops at these budgets."""
    written = [extract_natural(record.task, record.natural_answer or "")]
    for c in record.checkpoints:
        if c.budget in budgets and c.visible_answer is not None:
            written.append(extract_natural(record.task, c.visible_answer))
        elif c.budget in budgets:
            written.append(extract_forced(record.task, c.answer))
    return {normalize(record.task, answer) for answer in written if answer} - {""}


# --- The labels of a run --------------------------------------------------------------------------


@dataclass(frozen=True)
class KnownLabels:
    """Labels of calibration questions, from people and from the workload."""

    grades: Grades
    n_workload: int
    """Questions whose gold came with the workload."""
    n_cannot_tell: int
    """Questions whose labeller could not tell."""
    disagreeing: tuple[str, ...]
    """Ids of other questions that two labellers answered differently."""
    labellers: Mapping[str, int]
    """Number of questions by labeller."""
    n_neither: int = 0
    """Labelled questions to which no recorded answer is right."""

    def counts(self, state: LabelForecast) -> LabelCounts:
        """Count the labels; `state` is the forecast that follows from them."""
        asked, disagreeing = len(self.grades) - self.n_workload, len(self.disagreeing)
        return LabelCounts(
            self.n_workload,
            asked,
            asked - self.n_cannot_tell - disagreeing,
            self.n_cannot_tell,
            disagreeing,
            round(state.labels),
            state.saving_pp,
            self.n_neither,
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
        records = {record.id: record for record in run.all_records() if record.sample == 0}
        file = LabelFile(run, {name: record.key for name, record in records.items()})
        return cls(labelling, run, records, file)

    def known(self, labels: Mapping[str, Mapping[str, str | None]], grader: Grader) -> KnownLabels:
        """Grade the counted questions; `labels` maps labellers to their gold by question id."""
        records, ids = self.records, self.labelling.questions.ids
        own = [name for name in ids if records[name].is_graded]
        open_ids = {*ids} - {*own}
        given: dict[str, list[str | None]] = {}
        for golds in labels.values():
            for name, gold in golds.items():
                if name in open_ids:
                    given.setdefault(name, []).append(gold)
        told = {name: [*map(str, golds)] for name, golds in given.items() if None not in golds}
        differ = [name for name in told if not _agree(told[name], records[name].task, grader)]
        right = {name: first for name, (first, *_) in told.items() if name not in differ}
        graded = grade_by([records[name] for name in right], right.values(), grader)
        found: dict[str, GoldGrade | None] = dict.fromkeys(given)
        found |= zip(right, graded, strict=True)
        found |= {name: _grade_of(records[name]) for name in own}
        return KnownLabels(
            {row: found[name] for row, name in enumerate(ids) if name in found},
            n_workload=len(own),
            n_cannot_tell=len(given) - len(told),
            disagreeing=tuple(sorted(differ)),
            labellers={name: len(open_ids & golds.keys()) for name, golds in labels.items()},
            n_neither=sum(not (each.natural or any(each.replies.values())) for each in graded),
        )


def _agree(golds: Sequence[str], task: str, grader: Grader) -> bool:
    first, *others = golds
    return all(
        grader.grade(task, first, other) or grader.grade(task, other, first) for other in others
    )


def grade_by(
    records: Sequence[ProbeRecord | ReplyRecord], golds: Iterable[str], grader: Grader
) -> list[GoldGrade]:
    """Grade recorded answers by new gold, one per record."""
    again = zip(map(ungraded, records), golds, strict=True)
    graded, _ = grade_records([replace(record, gold=gold) for record, gold in again], grader)
    return list(map(_grade_of, graded))


def _grade_of(record: ProbeRecord | ReplyRecord) -> GoldGrade:
    """The grades that a record holds."""
    if isinstance(record, ReplyRecord):
        right = [reply is not None and bool(reply.correct) for reply in record.answered()]
        return GoldGrade(right[-1], dict(enumerate(right, start=1)))
    replies = {
        c.budget: bool(c.correct if c.visible_answer is None else c.visible_correct)
        for c in record.checkpoints
    }
    return GoldGrade(bool(record.natural_correct), replies)
