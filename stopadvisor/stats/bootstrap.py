"""Question-level resampling.

Questions are resampled, never checkpoints.  A resample is a row of counts (how often each
question was drawn), so that the statistic of all resamples is one matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stopadvisor.arrays import FloatArray, IntArray

__all__ = ["MOST_BLOCKS", "Interval", "block_sums", "interval", "resample_counts"]

MOST_BLOCKS = 2000
"""Beyond so many units, evenly mixed blocks of them are resampled: memory stays bounded."""


@dataclass(frozen=True)
class Interval:
    """Median and percentile interval over resamples."""

    median: float
    low: float
    high: float


def interval(values: FloatArray, level: float = 0.95) -> Interval:
    """Percentile interval of resampled values, shape (n_resamples,)."""
    tail = (1 - level) / 2
    low, median, high = np.quantile(values, [tail, 0.5, 1 - tail]).tolist()
    return Interval(median, low, high)


def block_sums(values: FloatArray, units: IntArray | None = None) -> FloatArray:
    """Sums over what is resampled together: a unit, or where there are many a block of units.

    Parameters
    ----------
    values : ndarray of float, shape (n_rows, n_columns)
    units : ndarray of int, shape (n_rows,), optional
        Number of each row's unit, from 0; every row is its own by default.

    Returns
    -------
    ndarray of float, shape (n_blocks, n_columns)
        In no more than `MOST_BLOCKS` rows.
    """
    blocks = (np.arange(len(values)) if units is None else units) % MOST_BLOCKS
    return np.stack([np.bincount(blocks, column) for column in values.T], axis=1)


def resample_counts(n_units: int, n_resamples: int, *, rng: np.random.Generator) -> FloatArray:
    """How often each unit appears in each resample of `n_units` draws with replacement.

    Returns
    -------
    ndarray of float32, shape (n_resamples, n_units)
        float32 holds the counts exactly and makes the products that follow cheaper.
    """
    draws = rng.integers(n_units, size=(n_resamples, n_units))
    draws += np.arange(n_resamples)[:, None] * n_units
    counts = np.bincount(draws.ravel(), minlength=n_resamples * n_units)
    return counts.reshape(n_resamples, n_units).astype(np.float32)
