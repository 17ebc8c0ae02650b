"""Accuracy against cost, and what else a choice looks like on fit questions.

A frontier is what a rule costs and gets right on average, one point a threshold; the fixed-budget
frontier has one point a budget.  The gain is the height of the first above the second at equal
cost.  What pictures show comes from the functions that made the choice; opens no outcome but those
of fit questions, chooses nothing, and words nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stopadvisor.assessment.choice import Choice
from stopadvisor.assessment.forecasts import fit_limit
from stopadvisor.assessment.sequences import FitData, ThresholdSequence
from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray, Numbers, numbers
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.probes.table import NO_PROBE
from stopadvisor.rules.families import FIXED_BUDGET, display_threshold
from stopadvisor.rules.schedules import GridSchedule, grid_view
from stopadvisor.rules.scorer import Scorer
from stopadvisor.stats.bounds import StopCurve

__all__ = [
    "AlphaSavings", "Curve", "Ending", "Frontier", "Interpolation", "accuracy_at_cost", "displayed",
    "endings_of", "fit_curves", "fixed_accuracy", "fixed_budget_frontier", "fixed_curve", "gains",
    "grid_frontier", "savings_by_alpha", "sequence_frontier", "served_budget_frontier",
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


# --- For the eye ----------------------------------------------------------------------------------

ALPHAS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.10, 0.125, 0.15, 0.175, 0.20, 0.25, 0.30)
"""Further risk targets at which the saving is computed."""


@dataclass(frozen=True)
class Curve:
    """A frontier for the eye: thresholds or budgets with their cost and accuracy."""

    name: str
    """Of the rule."""
    at: Numbers
    """Thresholds as people know them, or budgets in tokens."""
    cost: tuple[float, ...]
    """Percent of what full thinking costs."""
    accuracy: tuple[float, ...]
    """Share in 0–1."""


@dataclass(frozen=True)
class AlphaSavings:
    """Net saving that each risk target allows."""

    alphas: tuple[float, ...]
    savings: dict[str, tuple[float | None, ...]]
    """Family to percent; None where no threshold keeps the risk."""


def displayed(family: str, thresholds: FloatArray) -> FloatArray:
    """Thresholds on the scale that people know; no confidence is shown as more than 1.

    The first of a sequence lies above every score, and so above every confidence.
    """
    shown = np.array([display_threshold(family, t) for t in thresholds])
    return np.minimum(shown, 1.0) if family in ("confidence", "deer") else shown


# --- Accuracy against cost ------------------------------------------------------------------------


def _curve(name: str, frontier: Frontier, at: FloatArray, full_cost: float) -> Curve:
    """A frontier with its cost in percent of full thinking."""
    cost = 100 * frontier.cost / full_cost
    return Curve(name, numbers(at), tuple(cost.tolist()), tuple(frontier.accuracy.tolist()))


def fit_curves(fit: FitData, rules: Sequence[ThresholdSequence]) -> tuple[Curve, ...]:
    """A curve for each rule, out of fold."""
    full_cost = float(fit.full_cost.mean())
    return tuple(
        _curve(
            rule.scorer.family,
            sequence_frontier(fit, rule),
            displayed(rule.scorer.family, rule.thresholds),
            full_cost,
        )
        for rule in rules
    )


def fixed_curve(fit: FitData) -> Curve:
    """Everything stopped at one budget; of a ladder each rung for everybody."""
    table, full = fit.table, fit.full_cost
    if table.rungs is not None:
        columns = np.array([k for block in table.rungs.blocks for k in {block[0], block[-1]}])
        cost, accuracy = table.rungs.spent.price.mean(axis=0), table.stop_correct.mean(axis=0)
        rungs = Frontier(columns + 1.0, cost[columns], accuracy[columns])
        return _curve("one rung for everybody", rungs, rungs.at, float(full.mean()))
    served = served_budget_frontier(fit)
    return _curve("fixed budget", served, served.at, float(fit.full_cost.mean()))


def accuracy_at_cost(fixed: Curve, cost: float) -> float | None:
    """Accuracy of fixed budgets at that cost.

    None outside the budgets' range, or where their costs are out of order.
    """
    if np.any(np.diff(fixed.cost) < 0):
        return None
    if not fixed.cost[0] <= cost <= fixed.cost[-1]:
        return None
    budgets = Frontier(*(np.array(v, float) for v in (fixed.at, fixed.cost, fixed.accuracy)))
    return float(fixed_accuracy(budgets, np.array([cost]))[0])


# --- Savings, and where each rule stops -----------------------------------------------------------


def savings_by_alpha(choice: Choice) -> AlphaSavings:
    """What each rule that was compared saves."""
    settings, accuracy = choice.settings, choice.full_accuracy
    alphas = sorted({a for a in ALPHAS if a < accuracy} | {settings.alpha})
    full = float(choice.fit.full_cost.sum())
    limits = [fit_limit(choice.n_calibration, replace(settings, alpha=alpha)) for alpha in alphas]
    savings = {}
    for sequence in choice.compared:
        at = [sequence.index(limit) for limit in limits]
        savings[sequence.scorer.family] = tuple(
            None if k < 0 else 100 * (1 - float(sequence.costs[k]) / full) for k in at
        )
    return AlphaSavings(tuple(alphas), savings)


@dataclass(frozen=True)
class Ending:
    """Where a rule ends the fit questions, at the threshold that the promise allows it."""

    rule: ThresholdSequence
    stops: IntArray  # (n_questions,)
    """Checkpoint; their number for never."""
    positions: IntArray  # (n_questions,)
    """Thinking tokens; `NO_PROBE` where it thinks to the end."""
    correct: BoolArray  # (n_questions,)
    """Whether the reply is right."""


def endings_of(choice: Choice) -> tuple[Ending, ...]:
    """Endings of every rule that was compared, as far as the promise allows it to stop."""
    found = []
    for sequence in choice.compared:
        index, view = sequence.index(choice.limit), sequence.view
        if index >= 0:
            stops = sequence.curve.stops(index)
            at = np.minimum(stops, view.n_checkpoints - 1)[:, None]
            early = stops < view.n_checkpoints
            positions = np.take_along_axis(view.positions, at, axis=1)[:, 0]
            right = np.take_along_axis(view.correct_online, at, axis=1)[:, 0]
            found.append(
                Ending(
                    sequence,
                    stops,
                    np.where(early, positions, NO_PROBE),
                    np.where(early, right, view.full_correct),
                )
            )
    return tuple(found)
