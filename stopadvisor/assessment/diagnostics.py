"""What a choice looks like on fit questions: curves, savings by risk target, reliability.

Everything comes from the functions that made the choice, so that whoever shows it gives the same
numbers.  Opens no outcome but those of fit questions, and words nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit

from stopadvisor.arrays import FloatArray
from stopadvisor.assessment.choice import Choice, certification_probability, fit_limit
from stopadvisor.assessment.examples import Stops
from stopadvisor.assessment.frontier import (
    Frontier,
    fixed_accuracy,
    sequence_frontier,
    served_budget_frontier,
)
from stopadvisor.assessment.sequences import (
    FitData,
    ThresholdSequence,
    score_out_of_fold,
    sequence_of,
)
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.rules.families import SCALAR_FAMILIES, display_threshold
from stopadvisor.stats.reliability import Reliability, reliability

__all__ = [
    "AlphaSavings",
    "Curve",
    "FitRule",
    "accuracy_at_cost",
    "curve_of",
    "displayed",
    "fit_curves",
    "fit_reliability",
    "fit_rules",
    "fixed_curve",
    "savings_by_alpha",
]

ALPHAS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.10, 0.125, 0.15, 0.175, 0.20, 0.25, 0.30)
"""Risk targets at which the saving is computed, beside the one in the settings."""


@dataclass(frozen=True)
class FitRule:
    """A family on fit questions: all its thresholds, and the scores they were made of."""

    sequence: ThresholdSequence
    scores: FloatArray  # (n_questions, n_scheduled) linear scale, out of fold

    @property
    def family(self) -> str:
        """Of its scores."""
        return self.sequence.scorer.family

    def stops(self, index: int) -> Stops:
        """What it does at one of its thresholds."""
        return Stops(
            self.family,
            self.sequence.scorer.schedule,
            _display_scores(self.family, self.scores),
            display_threshold(self.family, float(self.sequence.thresholds[index])),
            self.sequence.curve.stops(index),
        )

    @classmethod
    def build(cls, fit: FitData, family: str, schedule: tuple[int, ...]) -> FitRule | None:
        """Score out of fold; None where the family cannot be scored."""
        found = score_out_of_fold(fit, family, schedule)
        return None if found is None else cls(sequence_of(fit, *found), found[1])


@dataclass(frozen=True)
class Curve:
    """A frontier for the eye: thresholds or budgets with their cost and accuracy."""

    name: str
    at: FloatArray  # (n_points,)
    """Thresholds as people know them, or budgets in tokens."""
    cost: FloatArray  # (n_points,)
    """Percent of what full thinking costs."""
    accuracy: FloatArray  # (n_points,)
    """Share in 0–1."""


@dataclass(frozen=True)
class AlphaSavings:
    """Net saving that each risk target allows."""

    alphas: tuple[float, ...]
    savings: dict[str, tuple[float | None, ...]]
    """Family to percent; None where no threshold keeps the risk."""
    probabilities: tuple[float, ...]
    """Probability that a saving is certified, with the calibration questions there are."""


def fit_rules(choice: Choice) -> tuple[FitRule, ...]:
    """The sequences that calibration tests, untruncated, and the other scalar families set."""
    wanted = [(c.scorer.family, c.scorer.schedule) for c in choice.sequences]
    beside = wanted[-1][1]  # the scalar side's checkpoints, where there is one
    scalars = [f for f in SCALAR_FAMILIES if f in choice.settings.families]
    wanted += [(f, beside) for f in scalars if f not in dict(wanted)]
    found = [FitRule.build(choice.fit, family, schedule) for family, schedule in wanted]
    return tuple(rule for rule in found if rule is not None)


def displayed(family: str, thresholds: FloatArray) -> FloatArray:
    """Thresholds on the scale that people know."""
    return np.array([display_threshold(family, t) for t in thresholds])


def _display_scores(family: str, values: FloatArray) -> FloatArray:
    if family == "confidence":
        return np.exp(values)
    return expit(values) if family.startswith("learned") else values


# --- Accuracy against cost ------------------------------------------------------------------------


def curve_of(name: str, frontier: Frontier, at: FloatArray, full_cost: float) -> Curve:
    """A frontier with its cost in percent of full thinking."""
    return Curve(name, at, 100 * frontier.cost / full_cost, frontier.accuracy)


def fit_curves(fit: FitData, rules: tuple[FitRule, ...]) -> tuple[Curve, ...]:
    """A curve for each rule, out of fold."""
    full_cost = float(fit.full_cost.mean())
    return tuple(
        curve_of(
            rule.family,
            sequence_frontier(fit, rule.sequence),
            displayed(rule.family, rule.sequence.thresholds),
            full_cost,
        )
        for rule in rules
    )


def fixed_curve(fit: FitData) -> Curve:
    """Everything stopped at one budget."""
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
    budgets = Frontier(fixed.at, fixed.cost, fixed.accuracy)
    return float(fixed_accuracy(budgets, np.array([cost]))[0])


# --- Savings and reliability ----------------------------------------------------------------------


def savings_by_alpha(choice: Choice, rules: tuple[FitRule, ...]) -> AlphaSavings:
    """What each rule that calibration tests saves, and the probability that one is certified."""
    fit, settings = choice.fit, choice.settings
    accuracy = choice.full_accuracy
    alphas = sorted({a for a in ALPHAS if a < accuracy} | {settings.alpha})
    full = float(fit.full_cost.sum())
    savings: dict[str, tuple[float | None, ...]] = {}
    by_family = {rule.family: rule.sequence for rule in rules}
    probabilities = np.zeros(len(alphas))
    for tested in choice.sequences:
        sequence = by_family[tested.scorer.family]
        row: list[float | None] = []
        for k, alpha in enumerate(alphas):
            asked = replace(settings, alpha=alpha)
            index = sequence.index(fit_limit(choice.n_fit, choice.n_calibration, asked, accuracy))
            row.append(None if index < 0 else 100 * (1 - float(sequence.costs[index]) / full))
            probability = certification_probability(fit, sequence, choice.n_calibration, asked)
            probabilities[k] = max(probabilities[k], probability)
        savings[sequence.scorer.family] = tuple(row)
    return AlphaSavings(tuple(alphas), savings, tuple(probabilities.tolist()))


def fit_reliability(table: GradedTable, learned: FitRule | None) -> dict[str, Reliability]:
    """Scores read as probabilities, against what came true, while the trace goes on."""
    live = ~table.ended
    scores = {}
    if learned is not None:
        at = learned.sequence.scorer.schedule
        inside = live[:, at]
        scores[learned.family] = reliability(
            expit(learned.scores)[inside], table.stop_correct[:, at][inside]
        )
    if table.entropy_source != "none":
        scores["confidence"] = reliability(
            np.minimum(np.exp(table.mean_logprob[live]), 1.0), table.stop_correct[live]
        )
    return scores
