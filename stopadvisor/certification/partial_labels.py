"""Certifying lost answers where few calibration questions have gold.

A reply that equals the natural answer in normal form takes its grade, so only a question whose
reply differs can be lost, and of those a label is asked for only where it can change a decision.
What has no label counts as lost wherever its reply differs, which can only withhold a certificate.
Knows no files and no grader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from stopadvisor.arrays import BoolArray, FloatArray
from stopadvisor.assessment.choice import Choice
from stopadvisor.assessment.wishes import Settings
from stopadvisor.collection.gold_labels import GoldGrade
from stopadvisor.errors import CalibrationError
from stopadvisor.probes.outcomes import CalibrationQuestions, GradedTable
from stopadvisor.rules.losses import LOST
from stopadvisor.rules.scorer import Scorer
from stopadvisor.stats.adaptive_labels import LabelTest
from stopadvisor.stats.bounds import max_losses

__all__ = [
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
        The certificate is not about lost answers among all questions alone, or is not tested along
        a fixed sequence.
    """
    wanted = {
        "--conditional counts the questions that full thinking gets right": settings.conditional,
        "--loss drop counts what stopping gains": settings.loss == "drop",
        "a further limit is tested beside the first": bool(settings.also),
        "--multiplicity finite-grid tests every threshold": settings.multiplicity == "finite-grid",
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


def label_tests(choice: Choice, table: CalibrationQuestions) -> tuple[LabelTest, ...]:
    """What `certification.calibration` will test, before any label is known."""
    settings, n = choice.settings, table.n_questions
    full = choice.fit.full_cost.sum()
    found = []
    for sequence, delta in zip(choice.sequences, choice.deltas(n), strict=True):
        differs = _at_thresholds(sequence.scorer, sequence.thresholds, table, may_be_lost)
        most = max_losses(n, settings.alpha, delta, settings.bound) if delta > 0 else -1
        savings = 100 * (1 - sequence.costs / full)
        found.append(LabelTest(differs, np.zeros_like(differs), most, savings))
    return tuple(found)


def with_labels(
    tests: Sequence[LabelTest], choice: Choice, table: CalibrationQuestions, grades: Grades
) -> tuple[LabelTest, ...]:
    """The same tests with what the labels say is lost."""
    rows = np.array(sorted(grades), dtype=np.int64)
    graded = at_worst(table.take(rows), {k: grades[int(row)] for k, row in enumerate(rows)})
    found = []
    for test, sequence in zip(tests, choice.sequences, strict=True):
        lost = np.zeros_like(test.differs)
        if rows.size:
            lost[rows] = _at_thresholds(sequence.scorer, sequence.thresholds, graded, _lost)
        found.append(replace(test, lost=lost))
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
