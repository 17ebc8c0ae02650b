"""Peak gain: a rule's highest point above fixed budgets, under the paper's accounting.

A summary after the fact: the questions that measure the threshold also chose it.  Each resample has
its own frontier of fixed budgets, but thresholds stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from stopadvisor.assessment.frontier import (
    Frontier,
    Interpolation,
    fixed_budget_frontier,
    gains,
    grid_frontier,
)
from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.constants import (
    PAPER_DEER_GRID,
    PAPER_EAT_GRID,
    PAPER_LEAP_GRID,
    PAPER_OPERATING_GRID,
    PAPER_PEAK_POINTS,
    PAPER_PUMA_DENSITIES,
)
from stopadvisor.paper.protocol import PaperSetting, first_stops
from stopadvisor.paper.proxies import entropy_variance, marker_density
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.rules.features import run_lengths
from stopadvisor.stats.intervals import block_sums, resample_counts

__all__ = [
    "TWO_CONDITION_FAMILIES", "Peak", "find_peak", "fixed_budgets", "learned_peak", "peak",
    "peak_thresholds", "resample_gains", "savings_at",
]  # fmt: skip


@dataclass(frozen=True)
class Peak:
    """The point of highest gain of a rule, and where it stops each question."""

    settings: tuple[float, ...]
    """The threshold, or both numbers of a rule with two conditions."""
    gain: float
    """Accuracy above fixed budgets at the same mean thinking tokens."""
    accuracy: float
    cost: float
    """Mean thinking tokens per question."""
    stops: IntArray  # (n_questions,)

    @property
    def threshold(self) -> float:
        """The threshold of a rule with one condition."""
        return self.settings[0]

    @property
    def spelled(self) -> str:
        """The settings as text."""
        return ", ".join(f"{value:g}" for value in self.settings)


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
        return _pair_peak(family, table, setting, fixed, how)
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


# --- Rules of two conditions --------------------------------------------------------------------

TWO_CONDITION_FAMILIES = ("confidence-leap", "deer", "eat", "puma")
"""Families whose peak is searched over two numbers; at matched risk each has one score."""


def _pair_peak(
    family: str, table: GradedTable, setting: PaperSetting, fixed: Frontier, how: Interpolation
) -> Peak:
    """Return the peak gain of a rule that stops where two conditions hold; ties go to the first.

    Parameters
    ----------
    family : {"confidence-leap", "deer", "eat", "puma"}
        Least leap and least confidence; least confidence and least marker density; checkpoints and
        largest variance of their entropies; least run length and largest marker density.
    setting : PaperSetting
        Setting of the same questions.
    fixed : Frontier
        Frontier of fixed budgets, in mean thinking tokens.
    how : {"linear", "nearest", "floor", "ceiling"}

    Paper, Appendix "Extended Baselines" and "Risk-Controlled Scalar Comparisons" (the original
    two-dimensional sweep of confidence-leap); the grids are those of the published scripts.
    """
    thinking, correct = setting.costs.thinking, setting.correct
    pairs, stops = [], []
    for pair, hit in _hits(family, table):
        hit[:, -1] = True  # where nothing fires, the last checkpoint answers
        pairs.append(pair)
        stops.append(hit.argmax(axis=1))
    at = np.stack(stops, axis=1)  # (n_questions, n_pairs)
    cost = np.take_along_axis(thinking, at, axis=1).mean(axis=0)
    accuracy = np.take_along_axis(correct, at, axis=1).mean(axis=0)
    rule = Frontier(np.arange(len(pairs), dtype=np.float64), cost, accuracy)
    above = gains(rule, fixed, how)
    k = int(np.argmax(above))
    return Peak(pairs[k], float(above[k]), float(accuracy[k]), float(cost[k]), at[:, k])


def _hits(family: str, table: GradedTable) -> Iterator[tuple[tuple[float, float], BoolArray]]:
    """Yield each pair of numbers, with the checkpoints at which both conditions hold."""
    confidence = np.exp(table.mean_logprob)
    if family == "confidence-leap":
        leap = np.zeros_like(confidence)
        leap[:, 1:] = confidence[:, 1:] - confidence[:, :-1]
        leaps, levels = (_even(*grid, 3) for grid in PAPER_LEAP_GRID)
        for least in leaps:
            for level in levels:
                yield (least, level), (leap >= least) & (confidence >= level)
    elif family == "deer":
        density = marker_density(table)
        grid, number = PAPER_DEER_GRID
        for level in _even(*grid, 3):
            for least in _even(0.0, float(density.max()), number, 4):
                yield (level, least), (confidence >= level) & (density >= least)
    elif family == "eat":
        windows, grid = PAPER_EAT_GRID
        for window in windows:
            variance = entropy_variance(table, window)
            for most in _even(*grid, 4):
                yield (float(window), most), variance <= most
    elif family == "puma":
        runs, density = run_lengths(table.answer_codes), marker_density(table)
        for length in range(1, table.n_checkpoints + 1):
            for most in _even(0.0, float(density.max()), PAPER_PUMA_DENSITIES, 4):
                yield (float(length), most), (runs >= length) & (density <= most)
    else:
        raise ValueError(f"a rule of two conditions is one of {TWO_CONDITION_FAMILIES}: {family!r}")


def _even(start: float, stop: float, number: int, digits: int) -> list[float]:
    values: list[float] = np.linspace(start, stop, number).round(digits).tolist()
    return values


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
