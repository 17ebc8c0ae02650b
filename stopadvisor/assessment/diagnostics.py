"""What a choice looks like on fit questions: curves, savings by risk target, lost questions.

Everything comes from the functions that made the choice, so that whoever shows it gives the same
numbers.  Opens no outcome but those of fit questions, and words nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stopadvisor.assessment.choice import Choice
from stopadvisor.assessment.forecasts import fit_limit
from stopadvisor.assessment.frontier import (
    Frontier,
    fixed_accuracy,
    sequence_frontier,
    served_budget_frontier,
)
from stopadvisor.assessment.sequences import FitData, ThresholdSequence
from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray, Numbers, numbers
from stopadvisor.probes.table import NO_PROBE
from stopadvisor.rules.families import display_threshold

__all__ = [
    "AlphaSavings", "Curve", "Ending", "accuracy_at_cost", "displayed", "endings_of", "fit_curves",
    "fixed_curve", "savings_by_alpha",
]  # fmt: skip

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
    limits = [
        fit_limit(choice.n_fit, choice.n_calibration, replace(settings, alpha=alpha))
        for alpha in alphas
    ]
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
