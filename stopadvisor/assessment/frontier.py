"""Accuracy against cost, and other figures of a choice on fit questions.

A rule's frontier has a point (mean cost, accuracy) per threshold; that of fixed budgets has one per
budget.  The gain is the height of the first above the second at equal cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stopadvisor.assessment.choice import Choice
from stopadvisor.assessment.rated import fit_limit
from stopadvisor.assessment.sequences import FitData, ThresholdSequence
from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.probes.table import NO_PROBE
from stopadvisor.probes.trigger import ListedTrigger
from stopadvisor.rules.families import FIXED_BUDGET, display_threshold
from stopadvisor.rules.scorer import Scorer, grid_view
from stopadvisor.stats.bounds import StopCurve

__all__ = [
    "AlphaSavings", "Curve", "Ending", "Frontier", "Interpolation", "accuracy_at_cost", "displayed",
    "endings_of", "fit_curves", "fixed_accuracy", "fixed_budget_frontier", "fixed_curve", "gains",
    "grid_frontier", "savings_by_alpha", "sequence_frontier", "served_budget_frontier",
]  # fmt: skip

Interpolation = Literal["linear", "nearest", "floor", "ceiling"]
"""How to interpolate accuracy between fixed budgets (paper, Table "Interpolation sensitivity")."""


@dataclass(frozen=True)
class Frontier:
    """Mean cost and accuracy per threshold or budget."""

    at: FloatArray  # (n_points,)
    """Thresholds on the scale of the scores, or budgets in tokens."""
    cost: FloatArray  # (n_points,)
    """Mean cost per question, in the unit of the costs given."""
    accuracy: FloatArray  # (n_points,)
    """Share of right answers, 0 to 1."""


# --- From scores, as in the paper: everything stops at the last checkpoint ------------------------


def grid_frontier(
    scores: FloatArray, cost: FloatArray, correct: BoolArray, thresholds: FloatArray
) -> Frontier:
    """Frontier of one rule that stops at the first checkpoint whose score reaches a threshold.

    `scores`, `cost` and `correct` have shape (n_questions, n_checkpoints); a question whose scores
    never reach the threshold stops at the last checkpoint.  `thresholds` are distinct, in any
    order, and the points keep that order.  Paper, Section "Training and Metrics".
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
    """Frontier of stopping every question at the same checkpoint.

    `cost` and `correct` have shape (n_questions, n_checkpoints), `budgets` (n_checkpoints,).
    """
    return Frontier(budgets.astype(np.float64), cost.mean(axis=0), correct.mean(axis=0))


def fixed_accuracy(
    fixed: Frontier, cost: FloatArray, how: Interpolation = "linear"
) -> NDArray[np.float64]:
    """Accuracy of fixed budgets at given costs, in the shape of `cost`.

    ``floor`` takes the most expensive budget that costs no more, ``ceiling`` the cheapest that
    costs no less, and ``nearest`` the cheaper of two equally near ones; outside the range all take
    the nearer end.  CalibrationError if the costs of fixed budgets descend.

    Paper, Eq. for G(tau), which is linear, and Appendix, "Fixed-budget interpolation sensitivity".
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
    """G(tau) at each point: accuracy of a rule minus that of fixed budgets at the same cost.

    The maximum is the paper's peak gain.
    """
    return rule.accuracy - fixed_accuracy(fixed, rule.cost, how)


# --- From fit questions, at the costs of the user's serving regime --------------------------------


def sequence_frontier(sequence: ThresholdSequence) -> Frontier:
    """Frontier of a sequence on fit questions, out of fold; thresholds on the linear scale."""
    view = sequence.view
    correct = np.column_stack([view.correct_online, view.full_correct])
    n = view.n_questions
    return Frontier(sequence.thresholds, sequence.costs / n, sequence.curve.totals(correct)[0] / n)


def served_budget_frontier(fit: FitData) -> Frontier:
    """Frontier of closing every trace at one budget and asking once.

    A shorter trace ends by itself, with the reference's answer and no probe.  ProbeError if the
    questions share no probed position.
    """
    view = grid_view(fit.table)
    rule = Scorer(FIXED_BUDGET, ListedTrigger(tuple(view.budgets.tolist())), None)
    cost = fit.costs(rule, view)  # (n_questions, n_probes + 1)
    costs = np.where(view.ended, cost[:, -1:], cost[:, :-1]).mean(axis=0)
    return Frontier(view.budgets.astype(np.float64), costs, view.correct_online.mean(axis=0))


# --- Figures for the report -----------------------------------------------------------------------

ALPHAS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.10, 0.125, 0.15, 0.175, 0.20, 0.25, 0.30)
"""Other risk limits at which the saving is computed."""


@dataclass(frozen=True)
class Curve:
    """A frontier to plot: thresholds or budgets with their cost and accuracy."""

    name: str
    """The rule."""
    at: tuple[float | None, ...]
    """Thresholds on the scale people know, None for infinity, or budgets in tokens."""
    cost: tuple[float, ...]
    """Cost in percent of full thinking's."""
    accuracy: tuple[float, ...]
    """Share of right answers, 0 to 1."""


@dataclass(frozen=True)
class AlphaSavings:
    """Net saving at each alpha."""

    alphas: tuple[float, ...]
    savings: dict[str, tuple[float | None, ...]]
    """Percent by family; None if no threshold keeps the risk."""


def displayed(family: str, thresholds: FloatArray) -> FloatArray:
    """Thresholds on the scale that people know.

    Confidences are capped at 1, because the first threshold of a sequence lies above every score.
    """
    shown = np.array([display_threshold(family, t) for t in thresholds])
    return np.minimum(shown, 1.0) if family in ("confidence", "deer") else shown


# --- Accuracy against cost ------------------------------------------------------------------------


def _curve(name: str, frontier: Frontier, at: FloatArray, full_cost: float) -> Curve:
    """The curve of a frontier, with costs in percent of full thinking's."""
    cost = 100 * frontier.cost / full_cost
    finite = tuple(value if np.isfinite(value) else None for value in at.tolist())
    return Curve(name, finite, tuple(cost.tolist()), tuple(frontier.accuracy.tolist()))


def fit_curves(fit: FitData, rules: Sequence[ThresholdSequence]) -> tuple[Curve, ...]:
    """A curve per rule, out of fold."""
    full_cost = float(fit.full_cost.mean())
    return tuple(
        _curve(
            rule.scorer.family,
            sequence_frontier(rule),
            displayed(rule.scorer.family, rule.thresholds),
            full_cost,
        )
        for rule in rules
    )


def fixed_curve(fit: FitData) -> Curve:
    """Curve of fixed budgets; for a ladder, of always serving one rung."""
    table, full = fit.table, fit.full_cost
    if table.rungs is not None:
        columns = np.array([k for block in table.rungs.blocks for k in {block[0], block[-1]}])
        cost, accuracy = table.rungs.spent.price.mean(axis=0), table.stop_correct.mean(axis=0)
        rungs = Frontier(columns + 1.0, cost[columns], accuracy[columns])
        return _curve("one rung for everybody", rungs, rungs.at, float(full.mean()))
    served = served_budget_frontier(fit)
    return _curve("fixed budget", served, served.at, float(fit.full_cost.mean()))


def accuracy_at_cost(fixed: Curve, cost: float) -> float | None:
    """Accuracy of fixed budgets at a cost; None outside their range, or if their costs descend."""
    if np.any(np.diff(fixed.cost) < 0):
        return None
    if not fixed.cost[0] <= cost <= fixed.cost[-1]:
        return None
    budgets = Frontier(*(np.array(v, float) for v in (fixed.at, fixed.cost, fixed.accuracy)))
    return float(fixed_accuracy(budgets, np.array([cost]))[0])


# --- Savings, and where each rule stops -----------------------------------------------------------


def savings_by_alpha(choice: Choice) -> AlphaSavings:
    """Saving of each compared rule at several alphas."""
    settings, accuracy = choice.settings, choice.full_accuracy
    alphas = sorted({a for a in ALPHAS if a < accuracy} | {settings.alpha})
    limits = [fit_limit(replace(settings, alpha=alpha), choice.counted) for alpha in alphas]
    savings = {}
    for sequence in choice.compared:
        at = [sequence.index(limit) for limit in limits]
        savings[sequence.scorer.family] = tuple(
            None if k < 0 else float(sequence.savings[k]) for k in at
        )
    return AlphaSavings(tuple(alphas), savings)


@dataclass(frozen=True)
class Ending:
    """Where a rule ends each fit question, at the threshold that alpha allows."""

    rule: ThresholdSequence
    stops: IntArray  # (n_questions,)
    """Checkpoint of the stop; n_checkpoints for never."""
    positions: IntArray  # (n_questions,)
    """Thinking tokens at the stop; `NO_PROBE` for never."""
    correct: BoolArray  # (n_questions,)
    """Whether the reply is right."""


def endings_of(choice: Choice) -> tuple[Ending, ...]:
    """Endings under each compared rule that may stop at this alpha."""
    found, limit = [], fit_limit(choice.settings, choice.counted)
    for sequence in choice.compared:
        index, view = sequence.index(limit), sequence.view
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
