"""What an assessment under the paper's protocol looks like: curves, risk, reliability.

The caller has access to every outcome.  The functions are those of `paper.protocol`, so
that whoever shows them gives the same numbers.  Words nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stopadvisor.assessment.diagnostics import Curve, Stops, curve_of
from stopadvisor.assessment.frontier import fixed_budget_frontier, grid_frontier
from stopadvisor.ground.arrays import FloatArray
from stopadvisor.paper.protocol import (
    PaperRule,
    PaperSetting,
    first_stops,
    paper_split,
    threshold_grid,
)
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.stats.reliability import Reliability, reliability

__all__ = ["PaperRisk", "paper_curves", "paper_reliability", "paper_risk", "paper_stops"]


@dataclass(frozen=True)
class PaperRisk:
    """Lost-correct risk of one rule on the paper's calibration questions."""

    thresholds: FloatArray  # (n_thresholds,) careful ones first, without the last, that never stops
    observed: FloatArray  # (n_thresholds,)
    upper: FloatArray  # (n_thresholds,)
    """Hoeffding, over all candidates."""
    chosen: int | None
    """Index of the chosen threshold; None where none is feasible."""
    n: int
    """Calibration questions."""


def paper_stops(setting: PaperSetting, point: PaperRule) -> Stops:
    """What a rule does on all questions; the last checkpoint is no early stop."""
    scores = setting.scores[point.family]
    n_checkpoints = scores.shape[1]
    at = first_stops(scores, point.threshold)
    at = np.where(at == n_checkpoints - 1, n_checkpoints, at)
    return Stops(point.family, scores, point.threshold, at)


def paper_curves(table: GradedTable, setting: PaperSetting) -> tuple[tuple[Curve, ...], Curve]:
    """Accuracy against thinking tokens: of each rule, and of fixed budgets."""
    thinking = setting.costs.thinking
    full = float(setting.costs.full_thinking.mean())
    rules = []
    for name, scores in setting.scores.items():
        found = grid_frontier(scores, thinking, setting.correct, threshold_grid(scores)[::-1])
        rules.append(curve_of(name, found, found.at, full))
    fixed = fixed_budget_frontier(thinking, setting.correct, table.budgets)
    return tuple(rules), curve_of("fixed budget", fixed, fixed.at, full)


def paper_risk(setting: PaperSetting, point: PaperRule, delta: float) -> PaperRisk:
    """Risk along the thresholds of a rule."""
    calibration, _ = paper_split(setting.correct.shape[0])
    scores = setting.scores[point.family][calibration]
    loss = setting.loss[calibration]
    grid = threshold_grid(scores)[-2::-1]
    # The frontier's sums serve for any quantity of the stop: here what is lost.
    risk = grid_frontier(scores, loss.astype(np.float64), loss, grid).accuracy
    n = calibration.size
    slack = math.sqrt(math.log(point.candidates / delta) / (2 * n))
    at = np.flatnonzero(grid == point.threshold)
    chosen = int(at[0]) if point.feasible and at.size else None
    return PaperRisk(grid, risk, np.minimum(risk + slack, 1.0), chosen, n)


def paper_reliability(table: GradedTable, setting: PaperSetting) -> dict[str, Reliability]:
    """Scores read as probabilities, against what came true."""
    return {
        name: reliability(np.clip(setting.scores[name], 0.0, 1.0), table.correct)
        for name in ("learned", "confidence")
    }
