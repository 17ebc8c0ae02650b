"""What a choice looks like on fit questions: curves, savings by risk target, lost questions.

Everything comes from the functions that made the choice, so that whoever shows it gives the same
numbers.  Opens no outcome but those of fit questions, and words nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit

from stopadvisor.assessment.choice import Choice
from stopadvisor.assessment.forecasts import certification_probability, fit_limit
from stopadvisor.assessment.frontier import (
    Frontier,
    fixed_accuracy,
    sequence_frontier,
    served_budget_frontier,
)
from stopadvisor.assessment.sequences import FitData, ThresholdSequence
from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray, Numbers, numbers
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.probes.table import NO_PROBE
from stopadvisor.rules.families import display_threshold

__all__ = [
    "AlphaSavings",
    "CheckpointAccuracy",
    "Curve",
    "Endings",
    "FitRisk",
    "Stops",
    "accuracy_at_cost",
    "checkpoint_accuracy",
    "curve_of",
    "displayed",
    "endings_of",
    "fit_curves",
    "fit_risk",
    "fixed_curve",
    "lost_rows",
    "savings_by_alpha",
    "stops_of",
]

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
    probabilities: tuple[float, ...]
    """Probability that a saving is certified, with the calibration questions there are."""


@dataclass(frozen=True)
class CheckpointAccuracy:
    """Accuracy of stopping everything at a checkpoint, and who is still thinking there."""

    budgets: tuple[int, ...]
    """Thinking tokens at each checkpoint."""
    accuracy: tuple[float, ...]
    """Of stopping everything there."""
    thinking: tuple[float, ...]
    """Share of the traces that are not over yet."""
    full_accuracy: float
    """Of full thinking."""


@dataclass(frozen=True)
class FitRisk:
    """Risk of the first rule to be tested along its thresholds, careful ones first."""

    family: str
    thresholds: FloatArray  # (n_thresholds,)
    """As people know them."""
    risk: FloatArray  # (n_thresholds,)
    """On fit questions, out of fold."""
    limit: float | None
    """Most that calibration can still certify; None where that is nothing, or several limits."""


def stops_of(sequence: ThresholdSequence, index: int) -> Stops:
    """What a rule does at one of its thresholds, on its own view of the fit questions."""
    family = sequence.scorer.family
    return Stops(
        family,
        _display_scores(family, sequence.rule.scores),
        display_threshold(family, float(sequence.thresholds[index])),
        sequence.curve.stops(index),
    )


def displayed(family: str, thresholds: FloatArray) -> FloatArray:
    """Thresholds on the scale that people know; no confidence is shown as more than 1.

    The first of a sequence lies above every score, and so above every confidence.
    """
    shown = np.array([display_threshold(family, t) for t in thresholds])
    return np.minimum(shown, 1.0) if family in ("confidence", "deer") else shown


def _display_scores(family: str, values: FloatArray) -> FloatArray:
    if family in ("confidence", "deer"):
        return np.exp(values)
    return expit(values) if family.startswith("learned") else values


# --- Accuracy against cost ------------------------------------------------------------------------


def curve_of(name: str, frontier: Frontier, at: FloatArray, full_cost: float) -> Curve:
    """A frontier with its cost in percent of full thinking."""
    cost = 100 * frontier.cost / full_cost
    return Curve(name, numbers(at), tuple(cost.tolist()), tuple(frontier.accuracy.tolist()))


def fit_curves(fit: FitData, rules: Sequence[ThresholdSequence]) -> tuple[Curve, ...]:
    """A curve for each rule, out of fold."""
    full_cost = float(fit.full_cost.mean())
    return tuple(
        curve_of(
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
        return curve_of("one rung for everybody", rungs, rungs.at, float(full.mean()))
    served = served_budget_frontier(fit)
    return curve_of("fixed budget", served, served.at, float(fit.full_cost.mean()))


def accuracy_at_cost(fixed: Curve, cost: float | None) -> float | None:
    """Accuracy of fixed budgets at that cost.

    None without a cost, outside the budgets' range, or where their costs are out of order.
    """
    if cost is None or np.any(np.diff(fixed.cost) < 0):
        return None
    if not fixed.cost[0] <= cost <= fixed.cost[-1]:
        return None
    budgets = Frontier(*(np.array(v, float) for v in (fixed.at, fixed.cost, fixed.accuracy)))
    return float(fixed_accuracy(budgets, np.array([cost]))[0])


def checkpoint_accuracy(table: GradedTable) -> CheckpointAccuracy:
    """Accuracy of stopping every question at each checkpoint."""
    return CheckpointAccuracy(
        tuple(table.budgets.tolist()),
        tuple(table.correct_online.mean(axis=0).tolist()),
        tuple((~table.ended).mean(axis=0).tolist()),
        float(table.full_correct.mean()),
    )


# --- Savings and risk -----------------------------------------------------------------------------


def savings_by_alpha(choice: Choice) -> AlphaSavings:
    """What each rule that was compared saves, and the probability that one is certified."""
    fit, settings = choice.fit, choice.settings
    accuracy = choice.full_accuracy
    alphas = sorted({a for a in ALPHAS if a < accuracy} | {settings.alpha})
    full = float(fit.full_cost.sum())
    savings: dict[str, tuple[float | None, ...]] = {}
    probabilities = np.zeros(len(alphas))
    for sequence in choice.compared:
        row: list[float | None] = []
        for k, alpha in enumerate(alphas):
            asked = replace(settings, alpha=alpha)
            limit = fit_limit(choice.n_fit, choice.n_calibration, asked)
            index = sequence.index(limit)
            row.append(None if index < 0 else 100 * (1 - float(sequence.costs[index]) / full))
            probability = certification_probability(fit, sequence, choice.n_calibration, asked)
            probabilities[k] = max(probabilities[k], probability)
        savings[sequence.scorer.family] = tuple(row)
    return AlphaSavings(tuple(alphas), savings, tuple(probabilities.tolist()))


def fit_risk(choice: Choice) -> FitRisk:
    """Risk on fit questions of the rule that calibration will test first."""
    sequence, n_fit = choice.sequences[0], choice.n_fit
    limit = fit_limit(n_fit, choice.n_calibration, choice.settings)
    family = sequence.scorer.family
    return FitRisk(
        family,
        displayed(family, sequence.thresholds),
        sequence.losses / n_fit,
        limit / n_fit if isinstance(limit, float) and limit >= 0 else None,
    )


@dataclass(frozen=True)
class Stops:
    """What one rule does on the questions of a table, at whose checkpoints it probes."""

    family: str
    scores: FloatArray  # (n_questions, n_checkpoints)
    """As people know them."""
    threshold: float
    stops: IntArray  # (n_questions,)
    """Checkpoint; their number for never."""


def lost_rows(table: GradedTable, stops: Stops) -> BoolArray:
    """First traces that full thinking ends right and the rule stops at a wrong answer."""
    at = np.minimum(stops.stops, table.n_checkpoints - 1)
    right = np.take_along_axis(table.correct_online, at[:, None], axis=1)[:, 0]
    early = stops.stops < table.n_checkpoints
    return np.asarray(early & (table.samples == 0) & table.full_correct & ~right)


@dataclass(frozen=True)
class Endings:
    """Where a rule ends the fit questions, at the threshold that the promise allows it."""

    family: str
    positions: IntArray  # (n_questions,)
    """Thinking tokens; `NO_PROBE` where it thinks to the end."""
    correct: BoolArray  # (n_questions,)
    """Whether the reply is right."""


def endings_of(choice: Choice) -> tuple[Endings, ...]:
    """Endings of every rule that was compared, as far as the promise allows it to stop."""
    limit = fit_limit(choice.n_fit, choice.n_calibration, choice.settings, choice.counted)
    found = []
    for sequence in choice.compared:
        index, view = sequence.index(limit), sequence.view
        if index >= 0:
            stops = sequence.curve.stops(index)
            at = np.minimum(stops, view.n_checkpoints - 1)[:, None]
            early = stops < view.n_checkpoints
            positions = np.take_along_axis(view.positions, at, axis=1)[:, 0]
            right = np.take_along_axis(view.correct_online, at, axis=1)[:, 0]
            found.append(
                Endings(
                    sequence.scorer.family,
                    np.where(early, positions, NO_PROBE),
                    np.where(early, right, view.full_correct),
                )
            )
    return tuple(found)
