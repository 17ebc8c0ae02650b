"""Question-level resampling.

Questions are resampled, never checkpoints.  A resample is a row of counts (how often each
question was drawn), so that the statistic of all resamples is one matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stopadvisor.ground.arrays import FloatArray, IntArray

__all__ = ["MOST_BLOCKS", "Interval", "block_sums", "interval", "ratio_interval", "resample_counts"]

MOST_BLOCKS = 2000
"""Beyond this many units, evenly mixed blocks of them are resampled: memory stays bounded."""


@dataclass(frozen=True)
class Interval:
    """Median over resamples, and two limits."""

    median: float
    """Over bootstrap resamples of the questions."""
    ci95: tuple[float, float]
    """Nominally 99 % where no loss is allowed on fit, as 95 % falls short there."""

    @property
    def low(self) -> float:
        """Lower limit."""
        return self.ci95[0]

    @property
    def high(self) -> float:
        """Upper limit."""
        return self.ci95[1]


def interval(values: FloatArray, level: float = 0.95) -> Interval:
    """Percentile interval of resampled values, shape (n_resamples,)."""
    tail = (1 - level) / 2
    low, median, high = np.quantile(values, [tail, 0.5, 1 - tail]).tolist()
    return Interval(median, (low, high))


def ratio_interval(
    part: FloatArray, whole: FloatArray, *, n_resamples: int = 1000, rng: np.random.Generator
) -> Interval | None:
    """95 % bootstrap-t interval of a ratio of sums: what stopping costs over what it replaces.

    Parameters
    ----------
    part, whole : ndarray of float, shape (n_units,)
        Sums over what is independent of all else; those of `whole` are positive.

    Returns
    -------
    Interval or None
        None where there is no limit: one unit, or too many resamples of identical units.

    Notes
    -----
    Each resample's distance from the ratio r of all units is taken in units of its own standard
    error, ``sqrt(sum((part - r * whole)**2)) / sum(whole)`` (Efron and Tibshirani 1993, section
    12.5).  Lengths of thinking are skewed: at 40 questions the percentile interval covers 90 to
    93 %, this one 93 to 98 % (``python -m tests.long --part intervals``).
    """
    n = part.size
    if n < 2:
        return None
    counts = resample_counts(n, n_resamples, rng=rng).astype(np.float64)
    moments = np.stack([part, whole, part * part, part * whole, whole * whole], axis=1)
    a, b, aa, ab, bb = (counts @ moments).T  # (n_resamples,) each
    ratios = a / b
    errors = np.sqrt(np.maximum(aa - 2 * ratios * ab + ratios**2 * bb, 0)) / b
    ratio = float(part.sum() / whole.sum())
    error = float(np.sqrt(((part - ratio * whole) ** 2).sum()) / whole.sum())
    distance = ratios - ratio
    distance[np.abs(distance) <= 1e-9 * abs(ratio)] = 0.0  # sums that should be equal
    errors[errors <= 1e-6 * abs(ratio)] = 0.0  # roots of differences that should be 0
    with np.errstate(divide="ignore"):  # away, and nobody knows how far
        scaled = np.divide(distance, errors, out=np.zeros_like(distance), where=distance != 0)
    tail = (1 - 0.95) / 2
    lowest = float(np.quantile(scaled, tail, method="lower"))
    highest = float(np.quantile(scaled, 1 - tail, method="higher"))
    if not np.isfinite([lowest, highest]).all():
        return None
    limits = ratio - highest * error, ratio - lowest * error
    return Interval(float(np.median(ratios)), limits)


def block_sums(values: FloatArray, units: IntArray | None = None) -> FloatArray:
    """Sums over what is resampled together, (n_blocks, n_columns): a unit, or a block of many.

    `units`, (n_rows,), number the unit of each row of `values` from 0; every row is its own by
    default.  There are no more than `MOST_BLOCKS` blocks.
    """
    blocks = (np.arange(len(values)) if units is None else units) % MOST_BLOCKS
    return np.stack([np.bincount(blocks, column) for column in values.T], axis=1)


def resample_counts(n_units: int, n_resamples: int, *, rng: np.random.Generator) -> FloatArray:
    """How often each unit is drawn in each resample; (n_resamples, n_units).

    float32 holds the counts exactly and makes the products that follow cheaper.
    """
    draws = rng.integers(n_units, size=(n_resamples, n_units))
    draws += np.arange(n_resamples)[:, None] * n_units
    counts = np.bincount(draws.ravel(), minlength=n_resamples * n_units)
    return counts.reshape(n_resamples, n_units).astype(np.float32)
