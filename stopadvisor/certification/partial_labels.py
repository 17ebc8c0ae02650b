"""Certifying lost answers where few calibration questions have gold.

A reply that equals the natural answer in normal form takes its grade, so only a question whose
reply differs can be lost, and of those a label is asked for only where it can change a decision.
What has no label counts as lost wherever its reply differs, which can only withhold a certificate.
Knows no files and no grader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stopadvisor.assessment.choice import Choice
from stopadvisor.assessment.requirements import Settings
from stopadvisor.collection.gold_labels import GoldGrade
from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.probes.outcomes import CalibrationQuestions, GradedTable
from stopadvisor.rules.losses import LOST
from stopadvisor.rules.scorer import Scorer
from stopadvisor.stats.adaptive_labels import LabelTest, counted_questions
from stopadvisor.stats.bounds import max_losses

__all__ = [
    "AskingPlan",
    "Grades",
    "at_worst",
    "check_partial",
    "label_tests",
    "may_be_lost",
    "to_choose_by",
    "with_labels",
]

Grades = Mapping[int, GoldGrade | None]
"""By row of the table; None where nobody can tell, which counts as lost where the reply differs."""


def check_partial(settings: Settings) -> None:
    """Refuse what takes gold for every calibration question.

    Raises
    ------
    CalibrationError
        The certificate is not about lost answers alone.
    """
    wanted = {
        "--loss drop counts what stopping gains": settings.loss == "drop",
        "a further limit is tested beside the first": bool(settings.also),
    }
    for what, is_wanted in wanted.items():
        if is_wanted:
            raise CalibrationError(
                f"{what}, which takes gold for every calibration question, and some have none: "
                "--loss lost alone is certified with few labels, --loss differs without any"
            )


def to_choose_by(settings: Settings) -> Settings:
    """Settings by which rules are chosen where few labels will say what is lost.

    Without labels a reply is only seen to differ.  About half of those that differ are lost, the
    others are wrong or right in both, so twice the limit is chosen by.  That decides how good the
    choice is, and nothing about the certificate.
    """
    return replace(
        settings, loss="differs", alpha=min(2 * settings.alpha, (1 + settings.alpha) / 2)
    )


def may_be_lost(view: GradedTable) -> BoolArray:
    """Whether a label could show a stop to be lost, (n_questions, n_probes + 1); without any label.

    Not where the reply equals the natural answer, and not where there is no natural answer to lose.
    """
    reply, full = view.stop_codes, view.full_codes[:, None]
    found = np.zeros((view.n_questions, view.n_checkpoints + 1), dtype=np.bool_)
    found[:, :-1] = view.live & (full >= 0) & (reply != full)
    return found


def at_worst(table: CalibrationQuestions, grades: Grades) -> CalibrationQuestions:
    """Grade questions by their labels, and lose those without one wherever their reply differs.

    The exact test of what this table loses passes the thresholds that `stats.adaptive_labels.walk`
    passes.
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
    """Which calibration questions count at which threshold; settled before a label is read."""

    order: IntArray  # (n_questions,) rows in the order of asking
    counted: tuple[IntArray, ...]  # of each sequence, (n_thresholds,): the first so many of them
    deltas: tuple[float, ...]
    """Error probability of each sequence that is tested; their sum is at most delta."""

    @classmethod
    def of(cls, choice: Choice, order: IntArray, labels: int | None = None) -> AskingPlan:
        """Count every question, or as many as the labels that are planned for suffice for.

        Notes
        -----
        The exact test of all questions leaves some of delta to a second sequence.  That of fewer
        may leave less: where numbers differ, the first sequence is tested at what it leaves.
        """
        n, deltas = order.size, choice.deltas(order.size)
        if labels is None:
            everyone = tuple(np.full(each.thresholds.size, n) for each in choice.sequences)
            return cls(order, everyone, deltas)
        rest = tuple(delta * (1 - _ROUNDING) for delta in deltas[1:])
        counted = []
        for sequence in choice.sequences:
            differing = sequence.curve.each(may_be_lost(sequence.view)).mean(axis=0)
            counted.append(counted_questions(differing, n, labels))
        return cls(order, tuple(counted), (choice.settings.delta - sum(rest), *rest))

    def counts(self, sequence: int) -> BoolArray:
        """Whether a question counts at a threshold, (n_questions, n_thresholds)."""
        rank = np.empty_like(self.order)
        rank[self.order] = np.arange(self.order.size)
        return rank[:, None] < self.counted[sequence]

    def first(self, n: int) -> IntArray:
        """The first N rows in the order of asking, ascending."""
        return np.sort(self.order[:n])


_ROUNDING = 1e-9
"""Of delta, so that what a test attains lies safely below what it is allowed."""


def label_tests(
    choice: Choice, table: CalibrationQuestions, plan: AskingPlan
) -> tuple[LabelTest, ...]:
    """What `certification.calibration` will test, before any label is known."""
    settings = choice.settings
    full = choice.fit.full_cost.sum()
    found = []
    for k, (sequence, delta) in enumerate(zip(choice.sequences, plan.deltas, strict=True)):
        differs = _at_thresholds(sequence.scorer, sequence.thresholds, table, may_be_lost)
        differs &= plan.counts(k)
        sizes, which = np.unique(plan.counted[k], return_inverse=True)
        most = np.full(sizes.size, -1)
        if delta > 0:
            most[:] = [max_losses(int(n), settings.alpha, delta) for n in sizes]
        savings = 100 * (1 - sequence.costs / full)
        found.append(LabelTest(differs, np.zeros_like(differs), most[which], savings))
    return tuple(found)


def with_labels(
    tests: Sequence[LabelTest],
    choice: Choice,
    table: CalibrationQuestions,
    grades: Grades,
    plan: AskingPlan,
) -> tuple[LabelTest, ...]:
    """The same tests with what the labels say is lost."""
    rows = np.array(sorted(grades), dtype=np.int64)
    graded = at_worst(table.take(rows), {k: grades[int(row)] for k, row in enumerate(rows)})
    found = []
    for k, (test, sequence) in enumerate(zip(tests, choice.sequences, strict=True)):
        lost = np.zeros_like(test.differs)
        if rows.size:
            lost[rows] = _at_thresholds(sequence.scorer, sequence.thresholds, graded, _lost)
        found.append(replace(test, lost=lost & plan.counts(k)))
    return tuple(found)


def _lost(view: GradedTable) -> BoolArray:
    return LOST.of(view).astype(np.bool_)


def _at_thresholds(
    scorer: Scorer,
    thresholds: FloatArray,
    table: GradedTable,
    of_stops: Callable[[GradedTable], BoolArray],
) -> BoolArray:
    """A property of stops at every threshold, (n_questions, n_thresholds)."""
    view = scorer.view(table)
    return scorer.curve(view, thresholds).each(of_stops(view))
