"""Accuracy against cost: rules along their thresholds, and stopping everything at one budget.

A frontier is what a rule costs and gets right on average, one point a threshold; the fixed-budget
frontier has one point a budget.  The gain is the height of the first above the second at equal
cost.  Takes costs and correctness as arrays, whatever the accounting, and chooses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stopadvisor.assessment.sequences import FitData, ThresholdSequence
from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.rules.schedules import GridSchedule, grid_view
from stopadvisor.rules.scorer import Scorer
from stopadvisor.stats.bounds import StopCurve

__all__ = [
    "Frontier", "Interpolation", "fixed_accuracy", "fixed_budget_frontier", "gains",
    "grid_frontier", "sequence_frontier", "served_budget_frontier",
]  # fmt: skip

Interpolation = Literal["linear", "nearest", "floor", "ceiling"]
"""How the accuracy between two fixed budgets is read (paper, Table "Interpolation sensitivity")."""


@dataclass(frozen=True)
class Frontier:
    """Mean cost and accuracy, a point per threshold or budget."""

    at: FloatArray  # (n_points,)
    """Thresholds on the scale of the scores, or budgets in tokens."""
    cost: FloatArray  # (n_points,)
    """Mean per question, in the unit of the costs given."""
    accuracy: FloatArray  # (n_points,)
    """Share in 0–1."""


# --- From scores, as the paper does: the last checkpoint is where everything stops ----------------


def grid_frontier(
    scores: FloatArray, cost: FloatArray, correct: BoolArray, thresholds: FloatArray
) -> Frontier:
    """Frontier of one rule that stops at the first checkpoint whose score reaches a threshold.

    `scores`, `cost` and `correct` have shape (n_questions, n_checkpoints); where no score reaches
    the threshold the question stops at the last checkpoint.  `thresholds` come in any order, which
    the points keep, without repetition.  Paper, Section "Training and Metrics".
    """
    order = np.argsort(-thresholds)
    descending = np.asarray(thresholds, dtype=np.float64)[order]
    curve = StopCurve.build(scores, np.ones(scores.shape, dtype=bool), descending)
    back = np.argsort(order)
    costs, right = (
        curve.totals(np.column_stack([values, values[:, -1]]))[0][back] / len(scores)
        for values in (cost, correct)
    )
    return Frontier(np.asarray(thresholds, dtype=np.float64), costs, right)


def fixed_budget_frontier(
    cost: FloatArray, correct: BoolArray, budgets: FloatArray | IntArray
) -> Frontier:
    """Frontier of stopping every question at one and the same checkpoint.

    `cost` and `correct` have shape (n_questions, n_checkpoints), `budgets` (n_checkpoints,).
    """
    return Frontier(budgets.astype(np.float64), cost.mean(axis=0), correct.mean(axis=0))


def fixed_accuracy(
    fixed: Frontier, cost: FloatArray, how: Interpolation = "linear"
) -> NDArray[np.float64]:
    """Accuracy that fixed budgets reach at some costs, of the shape of `cost`.

    ``floor`` takes the dearest budget that costs no more, ``ceiling`` the cheapest that costs no
    less; outside the range all of them take the nearer end, and ``nearest`` the cheaper of two that
    are equally near.  CalibrationError for costs of fixed budgets that descend.

    References
    ----------
    Paper, Eq. for G(tau), which reads linearly, and Appendix, "Fixed-budget interpolation
    sensitivity".
    """
    if np.any(np.diff(fixed.cost) < 0):
        raise CalibrationError("costs of fixed budgets must not descend")
    wanted = np.asarray(cost, dtype=np.float64)
    if how == "linear":
        return np.asarray(np.interp(wanted, fixed.cost, fixed.accuracy), dtype=np.float64)
    last = fixed.cost.size - 1
    below = np.clip(np.searchsorted(fixed.cost, wanted, side="right") - 1, 0, last)
    above = np.clip(np.searchsorted(fixed.cost, wanted, side="left"), 0, last)
    if how == "nearest":
        nearer = np.abs(fixed.cost[above] - wanted) < np.abs(wanted - fixed.cost[below])
        index = np.where(nearer, above, below)
    else:
        index = below if how == "floor" else above
    return np.asarray(fixed.accuracy[index], dtype=np.float64)


def gains(rule: Frontier, fixed: Frontier, how: Interpolation = "linear") -> NDArray[np.float64]:
    """G(tau): accuracy of a rule minus that of fixed budgets at the same cost, at its every point.

    Its largest value is the paper's peak gain, a summary after the fact.
    """
    return rule.accuracy - fixed_accuracy(fixed, rule.cost, how)


# --- From fit questions, as served: costs of the deployer's own regime ----------------------------


def sequence_frontier(fit: FitData, sequence: ThresholdSequence) -> Frontier:
    """Frontier of a sequence on fit questions, out of fold; thresholds on the linear scale."""
    view = sequence.view
    correct = np.column_stack([view.correct_online, view.full_correct])
    n = view.n_questions
    return Frontier(sequence.thresholds, sequence.costs / n, sequence.curve.totals(correct)[0] / n)


def served_budget_frontier(fit: FitData) -> Frontier:
    """What it costs and gives to close every trace at one budget and ask once.

    A trace that is over by then ends by itself, with the reference's answer and no probe.
    ProbeError where the questions have no position in common at which all that think on were
    probed.
    """
    view = grid_view(fit.table)
    rule = Scorer(FIXED_BUDGET, GridSchedule(tuple(view.budgets.tolist())), None)
    cost = fit.costs(rule, view)  # (n_questions, n_probes + 1)
    costs = np.where(view.ended, cost[:, -1:], cost[:, :-1]).mean(axis=0)
    return Frontier(view.budgets.astype(np.float64), costs, view.correct_online.mean(axis=0))
