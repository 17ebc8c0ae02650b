"""A score with its thresholds in testing order: what each question loses and costs at each.

Careful thresholds come first, so that a test can walk along them and halt where it fails.  Knows
nothing of how a sequence is chosen or certified.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stopadvisor.arrays import BoolArray, FloatArray, IntArray
from tests.benchmarks.candidate.observations import Observed, Picked, ProbesMade
from tests.benchmarks.real_rivals import fixed_budget as simple_fixed_budget

__all__ = ["FIXED", "LEARNED", "SCALAR", "ThresholdSequence", "build", "fixed_budget"]

FIXED, SCALAR, LEARNED = 1, 2, 3
"""Ranks; simple ones first."""
_MOST_THRESHOLDS = 400
"""Dense, so that a walk can halt close to the risk that is allowed; 40 saved a point less."""


@dataclass(frozen=True)
class ThresholdSequence:
    """A rule at each of its thresholds."""

    name: str
    rank: int
    thresholds: FloatArray  # (n_thresholds,)
    """Descending."""
    lost: BoolArray  # (n_questions, n_thresholds)
    cost: FloatArray  # (n_questions, n_thresholds)
    """In tokens."""
    fit_lost: BoolArray  # (n_fit, n_thresholds)
    """By scores that never saw the question, as `fit_cost`."""
    fit_cost: FloatArray  # (n_fit, n_thresholds)


def build(
    name: str,
    rank: int,
    picked: Picked,
    fit: IntArray,
    scores: FloatArray,
    left_out: FloatArray | None = None,
    floor: float = -np.inf,
) -> ThresholdSequence:
    """Measure a score at every threshold that fit questions suggest.

    Parameters
    ----------
    fit : ndarray of int, shape (n_fit,)
    scores : ndarray of float, shape (n_questions, n_probes)
    left_out : ndarray of float, shape (n_questions, n_probes), or None
        Scores of fit questions by models that never saw them; None where nothing was learned.
    floor : float
        Scores up to this one say nothing, and are no thresholds.
    """
    seen, lost, cost = picked.seen, picked.then.lost, picked.then.cost
    thresholds = _dense_thresholds(scores[fit], (seen.scored & (scores > floor))[fit])
    place = _stops(scores, seen, thresholds)  # (n_questions, n_thresholds)
    fit_place = place[fit] if left_out is None else _stops(left_out, seen, thresholds)[fit]
    return ThresholdSequence(
        name,
        rank,
        thresholds,
        np.take_along_axis(lost, place, axis=1),
        np.take_along_axis(cost, place, axis=1),
        np.take_along_axis(lost[fit], fit_place, axis=1),
        np.take_along_axis(cost[fit], fit_place, axis=1),
    )


def fixed_budget(grid: ProbesMade, prefill: float, fit: IntArray) -> ThresholdSequence:
    """Stop at T thinking tokens, T from the largest; thresholds are in tokens."""
    simple = simple_fixed_budget(grid.traces, prefill)
    budgets = grid.traces.positions[::-1].astype(np.float64)
    lost, cost = simple.lost, simple.cost
    return ThresholdSequence("fixed budget", FIXED, budgets, lost, cost, lost[fit], cost[fit])


def _dense_thresholds(scores: FloatArray, scored: BoolArray) -> FloatArray:
    """Every score at which a fit question may stop earlier than before, thinned evenly.

    Infinity comes first: nobody stops before the cap.  Both arrays are (n_fit, n_probes).
    """
    best = np.maximum.accumulate(np.where(scored, scores, -np.inf), axis=1)
    rises = np.ones(best.shape, dtype=bool)
    rises[:, 1:] = best[:, 1:] > best[:, :-1]
    values = np.unique(best[rises & scored])
    if values.size > _MOST_THRESHOLDS:
        at = np.linspace(0, values.size - 1, _MOST_THRESHOLDS).round().astype(np.int64)
        values = values[np.unique(at)]
    return np.concatenate([[np.inf], values[::-1]])


def _stops(scores: FloatArray, seen: Observed, thresholds: FloatArray) -> IntArray:
    """First probe whose score reaches each threshold, or the cap; n_probes for never.

    Shape (n_questions, n_thresholds).
    """
    value = np.where(seen.scored, scores, -np.inf)
    if seen.capped:
        value[:, -1] = np.where(seen.live[:, -1], np.inf, -np.inf)
    best = np.maximum.accumulate(value, axis=1)
    stops = np.empty((len(best), thresholds.size), dtype=np.int64)
    for row, line in enumerate(best):  # comparing all with all would need far more memory
        stops[row] = np.searchsorted(line, thresholds, side="left")
    return stops
