"""Bootstrap of the gain over fixed budgets, thresholds frozen.

In each resample of the questions the fixed-budget frontier is computed again, so that a gain and a
difference of gains are paired with what they are measured against.  Knows no scores: a rule is
where it stops each question.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.stats.bootstrap import block_sums, resample_counts

__all__ = ["resample_gains"]


def resample_gains(
    stops: Mapping[str, IntArray],
    thinking: FloatArray,
    correct: BoolArray,
    *,
    n_resamples: int,
    rng: np.random.Generator,
) -> dict[str, FloatArray]:
    """Gain of each rule in each resample; the same resamples for all rules.

    `stops` are the checkpoints at which each rule stops each question, (n_questions,); `thinking`,
    in tokens, and `correct` have shape (n_questions, n_checkpoints), the gains (n_resamples,).

    References
    ----------
    Paper, Eq. for G(tau) and Appendix "Full In-Distribution Frontier Summary"; as in the published
    scripts the threshold stays what it was on all questions.
    """
    n, m = correct.shape
    columns = [thinking, correct.astype(np.float64)]
    for at in stops.values():
        columns.append(np.take_along_axis(thinking, at[:, None], axis=1))
        columns.append(np.take_along_axis(columns[1], at[:, None], axis=1))
    values = np.concatenate([np.ones((n, 1)), *columns], axis=1)
    blocks = block_sums(values)
    # Means per question before float32: sums of tokens over a million of them would lose digits.
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
