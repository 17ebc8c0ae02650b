"""Peak gain: a rule's highest point above fixed budgets, under the paper's accounting.

A summary after the fact: the questions that measure the threshold also chose it.  Each resample has
its own frontier of fixed budgets, but thresholds stay.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stopadvisor.assessment.frontier import (
    Frontier,
    Interpolation,
    fixed_budget_frontier,
    gains,
    grid_frontier,
)
from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.constants import PAPER_OPERATING_GRID, PAPER_PEAK_POINTS
from stopadvisor.paper.protocol import PaperSetting, first_stops
from stopadvisor.paper.proxies import TWO_CONDITION_FAMILIES, Peak, pair_peak
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.stats.intervals import block_sums, resample_counts

__all__ = [
    "Peak", "find_peak", "fixed_budgets", "learned_peak", "peak", "peak_thresholds",
    "resample_gains", "savings_at",
]  # fmt: skip


def peak_thresholds(family: str, scores: FloatArray) -> FloatArray:
    """Return the thresholds over which the published scripts search for a peak, ascending.

    Probabilities use the grid of the paper's serving table, run lengths all possible lengths.
    Other scores have no common scale: their grid is even between the lowest and highest score.
    """
    if family.startswith(("learned", "terminator")):
        start, stop, number = PAPER_OPERATING_GRID
        return np.linspace(start, stop, number).round(3)
    if family == "run-stability":
        return np.arange(1.0, scores.shape[1] + 1)
    return np.unique(np.linspace(scores.min(), scores.max(), PAPER_PEAK_POINTS).round(4))


def fixed_budgets(setting: PaperSetting, rows: IntArray | None = None) -> Frontier:
    """Return the frontier of fixed budgets, in mean thinking tokens, on all questions or `rows`.

    Its points are the checkpoints.
    """
    chosen = slice(None) if rows is None else rows
    cost = setting.costs.thinking[chosen]
    return fixed_budget_frontier(
        cost, setting.correct[chosen], np.arange(cost.shape[1], dtype=np.float64)
    )


def peak(
    scores: FloatArray,
    thinking: FloatArray,
    correct: BoolArray,
    thresholds: FloatArray,
    fixed: Frontier,
    how: Interpolation = "linear",
) -> Peak:
    """Return the threshold with the highest gain; ties go to the lowest.

    `scores`, `thinking` and `correct` have shape (n_questions, n_checkpoints), `thresholds`
    (n_thresholds,); the gain is over `fixed`, the frontier of fixed budgets.

    Paper, Section "Training and Metrics", Eq. for G(tau) and the peak gain.
    """
    rule = grid_frontier(scores, thinking, correct, thresholds)
    above = gains(rule, fixed, how)
    k = int(np.argmax(above))
    at = float(rule.at[k])
    figures = float(above[k]), float(rule.accuracy[k]), float(rule.cost[k])
    return Peak((at,), *figures, first_stops(scores, at))


def find_peak(
    family: str,
    table: GradedTable,
    setting: PaperSetting,
    fixed: Frontier,
    how: Interpolation = "linear",
) -> Peak:
    """Return the peak of a family over the thresholds of the published scripts.

    `setting` and `fixed` are those of the table.
    """
    if family in TWO_CONDITION_FAMILIES:
        return pair_peak(family, table, setting, fixed, how)
    scores, thresholds = setting.scores[family], peak_thresholds(family, setting.scores[family])
    return peak(scores, setting.costs.thinking, setting.correct, thresholds, fixed, how)


def learned_peak(setting: PaperSetting) -> Peak:
    """Return the peak gain of the learned rule over all questions.

    Paper, Appendix "Full In-Distribution Frontier Summary" (LS8 Peak Gain).
    """
    scores, fixed = setting.scores["learned"], fixed_budgets(setting)
    thresholds = peak_thresholds("learned", scores)
    return peak(scores, setting.costs.thinking, setting.correct, thresholds, fixed)


def savings_at(best: Peak, setting: PaperSetting) -> dict[str, float]:
    """Return a rule's saving at its peak under each of the paper's serving regimes.

    In percent of full thinking's tokens, with every probe charged its cap.

    Paper, Section "Training and Metrics", Eq. for G(tau); Appendix "Cost and Serving Profiles".
    """
    costs, at = setting.costs, best.stops[:, None]
    by_regime = {
        "kv-fork": costs.total,
        "prefix-cache": costs.prefix_cache,
        "black-box": costs.black_box,
    }
    return {
        name: float(
            100 * (1 - np.take_along_axis(spent, at, axis=1).mean() / costs.full_total.mean())
        )
        for name, spent in by_regime.items()
    }


# --- Resamples ------------------------------------------------------------------------------------


def resample_gains(
    stops: Mapping[str, IntArray],
    thinking: FloatArray,
    correct: BoolArray,
    *,
    n_resamples: int,
    rng: np.random.Generator,
) -> dict[str, FloatArray]:
    """Return the gain of each rule in each resample; all rules share the resamples.

    `stops` are the checkpoints at which a rule stops each question, (n_questions,); `thinking`, in
    tokens, and `correct` have shape (n_questions, n_checkpoints), gains (n_resamples,).

    Paper, Eq. for G(tau) and Appendix "Full In-Distribution Frontier Summary"; as in the published
    scripts, thresholds are those chosen on all questions.
    """
    n, m = correct.shape
    columns = [thinking, correct.astype(np.float64)]
    for at in stops.values():
        columns.append(np.take_along_axis(thinking, at[:, None], axis=1))
        columns.append(np.take_along_axis(columns[1], at[:, None], axis=1))
    values = np.concatenate([np.ones((n, 1)), *columns], axis=1)
    blocks = block_sums(values)
    # Means per question, before float32: token sums over a million questions would lose digits.
    blocks /= n / len(blocks)
    sums = resample_counts(len(blocks), n_resamples, rng=rng) @ blocks.astype(np.float32)
    means = sums[:, 1:].astype(np.float64) / sums[:, :1]
    cost, accuracy = means[:, :m], means[:, m : 2 * m]
    return {
        name: means[:, 2 * m + 2 * k + 1] - _interpolate(means[:, 2 * m + 2 * k], cost, accuracy)
        for k, name in enumerate(stops)
    }


def _interpolate(x: FloatArray, xs: FloatArray, ys: FloatArray) -> FloatArray:
    """`numpy.interp` row by row; x has shape (n_rows,), the others (n_rows, n_points)."""
    last = xs.shape[1] - 1
    left = np.clip((xs <= x[:, None]).sum(axis=1) - 1, 0, max(last - 1, 0))
    right = np.minimum(left + 1, last)
    rows = np.arange(len(x))
    width = xs[rows, right] - xs[rows, left]
    part = np.clip((x - xs[rows, left]) / np.where(width > 0, width, 1.0), 0.0, 1.0)
    low, high = ys[rows, left], ys[rows, right]
    return np.where(x >= xs[:, -1], ys[:, -1], low + part * (high - low))
