"""Certify lost answers where few calibration questions have gold.

A reply that equals the natural answer in normal form takes its grade.  Only a question whose reply
differs can be lost, so labels are needed for these alone, and only where they can change a
decision.  With a planned number M of labels, the first M differing replies at each threshold are a
sample, and the exact test also uses how many differ.  A counted reply without a label counts as
lost, which can only withhold a certificate.

Rules are chosen by agreement, and the look is recorded with the order of asking, before any
question is shown or any label read.  The caller holds the run's lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from stopadvisor.answers.grading import Grader, described
from stopadvisor.assessment.choice import Choice
from stopadvisor.assessment.settings import Settings
from stopadvisor.collection.grades import (
    GoldGrade,
    SettledLabels,
    answers_at,
    as_graded,
    grade_by,
    settle,
)
from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.errors import CalibrationError, GraderError
from stopadvisor.probes.outcomes import CalibrationQuestions, GradedTable
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.rules.losses import LOST
from stopadvisor.rules.scorer import Scorer
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.labels import LabelFile
from stopadvisor.runs.look_log import as_recorded, digests_of, read_log
from stopadvisor.runs.replies import ReplyRecord
from stopadvisor.runs.sources import Source
from stopadvisor.stats.adaptive_labels import LabelForecast, LabelTest, asking_order, forecast, walk
from stopadvisor.stats.bounds import Certified, NotCertified, last_passed, max_losses
from stopadvisor.stats.label_sample import labelled_first, most_lost_labelled, sample_limit

__all__ = [
    "AskingPlan", "Grades", "LabelCounts", "LabelRun", "LabelledRun", "Labelling", "asking_salt",
    "at_worst", "check_partial", "label_request", "may_be_lost", "planned_labels",
    "preferred_sample", "to_choose_by",
]  # fmt: skip

# --- The test with few labels ---------------------------------------------------------------------

Grades = Mapping[int, GoldGrade | None]
"""Grade by row of the table; None (nobody can tell) counts as lost where the reply differs."""


def check_partial(settings: Settings) -> None:
    """Refuse losses that need gold for every calibration question."""
    if settings.loss == "drop" or settings.also:
        what = "--loss drop counts what stopping gains"
        if settings.loss != "drop":
            what = "a further limit is tested with the first"
        raise CalibrationError(
            f"{what}, which takes gold for every calibration question, and some have none: "
            "--loss lost alone is certified with few labels, --loss differs without any"
        )


def to_choose_by(settings: Settings) -> Settings:
    """Settings for choosing rules before any label is known.

    Without labels all one can see is whether a reply differs.  About half of the differing replies
    are lost, so the choice uses twice the limit.  This affects how good the choice is, not whether
    the certificate is true.
    """
    return replace(
        settings, loss="differs", alpha=min(2 * settings.alpha, (1 + settings.alpha) / 2)
    )


def may_be_lost(view: GradedTable) -> BoolArray:
    """Whether a label could show that a stop is lost, (n_questions, n_probes + 1).

    Only where the reply differs from the natural answer, and there is one.
    """
    reply, full = view.stop_codes, view.full_codes[:, None]
    found = np.zeros((view.n_questions, view.n_checkpoints + 1), dtype=np.bool_)
    found[:, :-1] = view.live & (full >= 0) & (reply != full)
    return found


def at_worst(table: CalibrationQuestions, grades: Grades) -> CalibrationQuestions:
    """Grade questions by their labels; a differing reply without a label counts as lost.

    On this table the exact test passes the thresholds that `stats.adaptive_labels.walk` passes.
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


@dataclass(frozen=True)
class AskingPlan:
    """Which differing replies get labels; fixed before a label is read."""

    order: IntArray  # (n_questions,) rows in the order of asking
    labels: int | None = None
    """At each threshold only the first N differing replies are labelled; None for all."""

    @classmethod
    def of(cls, choice: Choice, order: IntArray, planned: int | None = None) -> AskingPlan:
        """Plan for a number of labels as fit questions prefer; without one, label all."""
        if planned is None:
            return cls(order)
        sequence, settings = choice.sequences[0], choice.settings
        return cls(
            order,
            preferred_sample(
                sequence.curve.each(may_be_lost(sequence.view)),
                sequence.savings,
                (order.size, planned),
                (settings.alpha, settings.delta),
                rng=np.random.default_rng(settings.seed),
            ),
        )

    @property
    def is_sample(self) -> bool:
        """Whether only a sample of the differing replies is labelled."""
        return self.labels is not None and self.labels < self.order.size

    def deltas(self, choice: Choice) -> tuple[float, ...]:
        """Error probability of each sequence that is tested; their sum is at most delta."""
        if not self.is_sample:
            return choice.deltas(self.order.size)
        # The test of a sample may use all of delta, so nothing is left for a second sequence.
        return (choice.settings.delta, 0.0)[: len(choice.sequences)]

    def labelled(self, differs: BoolArray) -> BoolArray:
        """Which labels count at each threshold, (n_questions, n_thresholds)."""
        if self.labels is None or not self.is_sample:
            return differs
        return labelled_first(differs, self.order, self.labels)

    def most(self, differs: BoolArray, alpha: float, delta: float) -> IntArray:
        """Most labelled replies that may be lost at each threshold; -1 where none may."""
        n, n_thresholds = differs.shape
        if self.labels is None or not self.is_sample:
            return np.full(n_thresholds, max_losses(n, alpha, delta) if delta > 0 else -1)
        if delta <= 0:
            return np.full(n_thresholds, -1)
        return np.asarray(most_lost_labelled(n, self.labels, alpha, delta)[differs.sum(axis=0)])

    def certify(
        self, differs: BoolArray, lost: BoolArray, alpha: float, delta: float
    ) -> Certified | NotCertified:
        """Test a sequence on a sample of the differing replies.

        `differs` and `lost` have shape (n_questions, n_thresholds); `lost` includes replies without
        a label.
        """
        n = len(differs)
        counts, differing = (lost & self.labelled(differs)).sum(axis=0), differs.sum(axis=0)
        most = self.most(differs, alpha, delta)
        last = last_passed(counts <= most)
        at = max(last, 0)
        losses, d, labels = int(counts[at]), int(differing[at]), self.labels or n
        if last < 0:
            return NotCertified(
                f"the most careful threshold already loses {losses} of the {min(d, labels)} "
                f"labelled of {d} replies that differ among {n} calibration questions; at most "
                f"{max(int(most[at]), 0)} are allowed",
                None,
                None,
            )
        upper = min(sample_limit(losses, d, n, labels, delta), alpha)
        return Certified(last, alpha, delta, n, losses, upper, differing=d, planned_labels=labels)


_SAMPLED = (0.6, 1.0)
"""Sample sizes tried, as shares of the planned labels: the first differing replies change along the
thresholds, and those of earlier thresholds use labels too."""
_LOST = (1 / 8, 1 / 4, 1 / 2, 3 / 4)
"""Shares of the differing replies that are assumed lost: nobody knows beforehand."""
_DRAWS = 8
_AHEAD = 0.5
"""Points of saving by which a sample must lead, since it leaves no delta for a second rule."""


def preferred_sample(
    differs: BoolArray,
    savings: FloatArray,
    sizes: tuple[int, int],
    level: tuple[float, float],
    *,
    rng: np.random.Generator,
) -> int | None:
    """How many of the differing replies to label at each threshold; None for all of them.

    Simulates calibrations drawn from the fit questions, in which each differing reply is lost with
    an assumed probability and labelling ends at the last planned label.

    Parameters
    ----------
    differs : ndarray of bool, shape (n_fit, n_thresholds)
        Of fit questions.
    savings : ndarray of float, shape (n_thresholds,)
        In percent.
    sizes : tuple of int
        Calibration questions, and labels that are planned.
    level : tuple of float
        Alpha and delta.
    """
    n, planned = sizes
    nobody, order = np.zeros(n, dtype=np.bool_), np.arange(n)
    samples = sorted({max(1, round(share * planned)) for share in _SAMPLED})
    ways = [AskingPlan(order), *(AskingPlan(order, size) for size in samples if size < n)]
    saved = np.zeros(len(ways))
    for share in _LOST * _DRAWS:
        drawn = differs[rng.integers(len(differs), size=n)]
        lost = drawn & (rng.random(n) < share)[:, None]
        for k, way in enumerate(ways):
            labelled = way.labelled(drawn)
            test = LabelTest(labelled, lost & labelled, way.most(drawn, *level), savings)
            saved[k] += walk([test], nobody, order, budget=planned).saving([test])
    best = int(saved.argmax())
    leads = saved[best] - saved[0] > _AHEAD * len(_LOST) * _DRAWS
    return ways[best].labels if leads else None


def label_tests(
    choice: Choice, table: CalibrationQuestions, plan: AskingPlan
) -> tuple[LabelTest, ...]:
    """The tests of `certification.calibration`, before any label is known."""
    settings, found = choice.settings, []
    for sequence, delta in zip(choice.sequences, plan.deltas(choice), strict=True):
        differs = _at_thresholds(sequence.scorer, sequence.thresholds, table, may_be_lost)
        most = plan.most(differs, settings.alpha, delta)
        labelled, none = plan.labelled(differs), np.zeros_like(differs)
        found.append(LabelTest(labelled, none, most, sequence.savings))
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


# --- The look -------------------------------------------------------------------------------------


def label_request(source: Source, settings: Settings) -> dict[str, Any]:
    """Entry that the log of looks needs in addition: a digest of the order of asking."""
    check_partial(settings)
    grading = (source.manifest or {}).get("grading", {})
    if "grader_sha256" in grading:
        raise GraderError(
            f"{source.folder} was graded by {described(grading)}, and typed labels are compared as "
            "gold: grade it again with `stopadvisor assess RUN --regrade --grader gold`"
        )
    table = source.part("calibration")
    keys = [table.keys[row] for row in asking_order(table.keys, asking_salt(source))]
    return {"asking": _digest("\n".join(keys))}


def planned_labels(
    source: Source, asked: Mapping[str, Any], wanted: int | None, *, fresh: bool
) -> int | None:
    """Number of labels to plan for: what the first look recorded, else what is wanted.

    `asked` are the settings of the look, including the order of asking where labels are needed.
    With `fresh` other questions may be labelled, for which another number may be planned.
    CalibrationError where the number differs from the one recorded before figures were shown.
    """
    asked = as_recorded(asked)
    log = read_log(source.folder)
    here = log.at(digests_of(source.part("calibration").keys))
    for look in reversed(log.looks):
        is_same = all(look.asked.get(name) == value for name, value in asked.items())
        if not is_same and (fresh or not look.opened or look not in here):
            continue
        planned: int | None = look.asked.get("sampled_labels")
        if wanted in (None, planned):
            return planned
        if not fresh:
            named = "no --labels" if planned is None else f"--labels {planned}"
            raise CalibrationError(
                f"look {look.number} at these questions named {named}, which settled which labels "
                f"count before a figure of theirs was shown, got --labels {wanted}: say --fresh "
                "for questions that no look has used"
            )
    return wanted


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def asking_salt(source: Source) -> str:
    """Salt of the hash that orders the questions to label."""
    return f"labels {source.seed}"


# --- Asking ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelCounts:
    """How many labels there are, and what more would gain."""

    workload: int
    """Calibration questions whose gold came with the workload."""
    asked: int
    """Other questions that somebody was asked about."""
    used: int
    """Of these, questions whose right answer is settled."""
    cannot_tell: int
    """Questions that a labeller could not tell; they count as lost."""
    disagreeing: int
    """Questions that two labellers answered differently; they count as lost."""
    more_labels: int
    """About how many are still worth asking for."""
    more_saving_pp: float
    """Points of net saving that they are expected to add."""


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
    """Labels that were planned for, with `--labels`."""
    sampled: int | None
    """Where fit questions prefer a sample: of the replies that differ at a threshold the first so
    many count, in an order fixed beforehand; null where all do."""
    labels: LabelCounts
    """What there is, and what more would buy."""
    certified_saving_pct: float
    """Net saving that these labels certify, as fit questions measure it."""
    labellers: Mapping[str, int]
    """Questions that each has labelled."""
    disagreements: tuple[str, ...]
    """Ids of the questions answered differently."""
    file: str
    """Where the labels are."""
    exported: str | None
    """The sheet that was written, with `--export`."""
    n_exported: int | None
    """Questions on it."""


@dataclass(frozen=True)
class Labelling:
    """Calibration questions to be labelled, and the plan by which labels count."""

    choice: Choice
    questions: CalibrationQuestions
    """Questions that the test counts, graded by agreement."""
    salt: str
    labels: int | None = None
    """Number of labels planned; None for every label that can change a decision."""

    @cached_property
    def plan(self) -> AskingPlan:
        """Which labels count at which threshold, and the order of asking."""
        order = asking_order(self.questions.keys, self.salt)
        return AskingPlan.of(self.choice, order, self.labels)

    @cached_property
    def _tests(self) -> tuple[LabelTest, ...]:
        return label_tests(self.choice, self.questions, self.plan)

    def state(self, grades: Grades, *, n_draws: int = 50) -> LabelForecast:
        """What these labels certify, which to ask next, and what all further ones would gain."""
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
        """Different answers to a question, so that nothing tells which one comes from a stop.

        They are in normal form and ordered by hash.
        """
        if isinstance(record, ReplyRecord):
            forms = {each.normalized for each in record.answered() if each is not None}
        else:
            budgets = set()
            for sequence in self.choice.sequences:
                view = sequence.scorer.view(self.questions.take(np.array([row])))
                budgets |= set(view.positions[may_be_lost(view)[:, :-1]].tolist())
            forms = set(answers_at(record, budgets))
        return sorted(forms, key=lambda form: _digest(f"{record.key} {form}"))


# --- The labels of a run --------------------------------------------------------------------------


@dataclass(frozen=True)
class KnownLabels:
    """Labels of calibration questions, from people and from the workload."""

    grades: Grades
    settled: SettledLabels
    n_workload: int
    """Questions whose gold came with the workload."""

    def counts(self, state: LabelForecast) -> LabelCounts:
        """Count the labels; `state` is the one that they lead to."""
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
    """First traces, or replies of a ladder, by id."""
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
        """Grade the counted questions; `labels` holds each labeller's gold by question id."""
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
