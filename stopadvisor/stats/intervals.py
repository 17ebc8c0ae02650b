"""Confidence intervals for shares, for differences of paired shares, and by bootstrap.

Intervals for counts keep their width at 0 and n, where a bootstrap would collapse to a point.
Questions are resampled, never checkpoints.  A resample is a row of counts (how often each question
was drawn), so a statistic of all resamples is one matrix product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy

from stopadvisor.ground.arrays import FloatArray
from stopadvisor.ground.errors import CalibrationError

__all__ = [
    "MOST_BLOCKS", "Interval", "block_sums", "exact_interval", "interval", "paired_difference",
    "resample_counts", "saving_band", "saving_interval",
]  # fmt: skip

_TAIL = (1 - 0.95) / 2
_EDGE = 1 - 1e-12
"""The score is undefined at a difference of exactly ±1."""


def exact_interval(count: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Two-sided Clopper–Pearson interval of a share: exact, so its coverage is at least `level`."""
    if not 0 <= count <= n or n < 1:
        raise CalibrationError(f"a share needs 0 <= count <= n and n >= 1, got {count!r} of {n!r}")
    found = scipy.stats.binomtest(count, n).proportion_ci(level, method="exact")
    return float(found.low), float(found.high)


def paired_difference(gains: float, losses: float, n: int) -> tuple[float, float]:
    """95 % score interval (asymptotic) of ``(gains - losses) / n``, a difference of shares.

    `gains` counts questions right only the first way, `losses` those right only the second way.

    Notes
    -----
    A good policy rarely disagrees with full thinking.  If it never does, a bootstrap gives the
    point 0, this interval about ±3.8 / n.

    References
    ----------
    Tango (1998), "Equivalence test and confidence interval for the difference in proportions for
    the paired-sample design", Statistics in Medicine 17.
    """
    if min(gains, losses) < 0 or gains + losses > n or n < 1:
        raise CalibrationError(
            f"a paired difference needs gains + losses <= n, got {gains!r} + {losses!r} of {n!r}"
        )
    z = float(scipy.stats.norm.ppf(1 - _TAIL))
    estimate = (gains - losses) / n

    def score(difference: float) -> float:
        # Maximum-likelihood share of losses, given the difference: root of 2n q² + b q + c = 0.
        b = (2 * n - gains + losses) * difference - gains - losses
        c = -losses * difference * (1 - difference)
        q = (math.sqrt(max(b * b - 8 * n * c, 0.0)) - b) / (4 * n)
        variance = 2 * q + difference * (1 - difference)
        # The variance is 0 only without any disagreement, at a difference of exactly 0.
        return (estimate - difference) * math.sqrt(n / variance) if variance > 0 else 0.0

    low, high = -1.0, 1.0
    if score(-_EDGE) > z:
        low = float(scipy.optimize.brentq(lambda d: score(d) - z, -_EDGE, min(estimate, _EDGE)))
    if score(_EDGE) < -z:
        high = float(scipy.optimize.brentq(lambda d: score(d) + z, max(estimate, -_EDGE), _EDGE))
    return low, high


# --- Resampled questions --------------------------------------------------------------------------

MOST_BLOCKS = 2000
"""Most blocks that are resampled: more rows than this share blocks, to bound memory."""
_RESAMPLES = 1000


@dataclass(frozen=True)
class Interval:
    """Median and confidence interval over bootstrap resamples."""

    median: float
    """Median over bootstrap resamples of the questions."""
    ci95: tuple[float, float]
    """Interval of nominal level 95 %; 99 % if no loss is allowed on fit, where 95 % undercovers."""

    @property
    def low(self) -> float:
        """Lower limit."""
        return self.ci95[0]

    @property
    def high(self) -> float:
        """Upper limit."""
        return self.ci95[1]


def interval(values: FloatArray, level: float = 0.95) -> Interval:
    """Two-sided percentile interval of resampled values, shape (n_resamples,)."""
    tail = (1 - level) / 2
    low, median, high = np.quantile(values, [tail, 0.5, 1 - tail]).tolist()
    return Interval(median, (low, high))


def saving_interval(
    costs: FloatArray, full: FloatArray, *, rng: np.random.Generator
) -> tuple[float, float] | None:
    """95 % interval of the net saving (percent): bootstrap-t, with room for unseen questions.

    Parameters
    ----------
    costs, full : ndarray of float, shape (n_units,)
        Cost of independent units with stopping and with full thinking; `full` is positive.

    Returns
    -------
    tuple of float, or None
        None if a limit is infinite: with one unit, or too many resamples of identical units.

    Notes
    -----
    Each resample's distance from the overall ratio of costs is measured in standard errors of the
    resample, ``sqrt(sum((costs - r * full)**2)) / sum(full)`` with r its own ratio (Efron and
    Tibshirani 1993, section 12.5), because thinking lengths are skewed.

    No resample holds a question that the sample lacks.  Where 2 to 4 % of the questions think long
    and decide the saving, the bootstrap alone misses it in up to 20 % of samples of 40 questions.
    So the limits reach at least to those of `_with_unseen`, and miss it in at most 3.6 % of them,
    6.4 % of samples of 160 (``python -m tests.long --part intervals``, 500 samples a cell).  If
    unseen questions cost far more than any in the sample, no interval from it holds the mean
    (Bahadur and Savage 1956).
    """
    n = full.size
    if n < 2:
        return None
    counts = resample_counts(n, _RESAMPLES, rng=rng).astype(np.float64)
    moments = np.stack([costs, full, costs * costs, costs * full, full * full], axis=1)
    a, b, aa, ab, bb = (counts @ moments).T  # (n_resamples,) each
    ratios = a / b
    errors = np.sqrt(np.maximum(aa - 2 * ratios * ab + ratios**2 * bb, 0)) / b
    ratio = float(costs.sum() / full.sum())
    error = float(np.sqrt(((costs - ratio * full) ** 2).sum()) / full.sum())
    distance = ratios - ratio
    distance[np.abs(distance) <= 1e-9 * abs(ratio)] = 0.0  # rounding of equal sums
    errors[errors <= 1e-6 * abs(ratio)] = 0.0  # rounding of zero variances
    with np.errstate(divide="ignore"):  # a distance without an error estimate is infinite
        scaled = np.divide(distance, errors, out=np.zeros_like(distance), where=distance != 0)
    lowest = float(np.quantile(scaled, _TAIL, method="lower"))
    highest = float(np.quantile(scaled, 1 - _TAIL, method="higher"))
    if not np.isfinite([lowest, highest]).all():
        return None
    low, high = 100 * (1 - (ratio - lowest * error)), 100 * (1 - (ratio - highest * error))
    least, most = _with_unseen(costs, full).tolist()
    return min(low, least), min(max(high, most), 100.0)  # no more can be saved


def _with_unseen(costs: FloatArray, full: FloatArray) -> FloatArray:
    """Least and most saving (percent) if the sample lacks a kind of question, for each column.

    A kind with a share of ``1 - 0.025**(1 / n)``, 8.8 % at n = 40, is missing from one sample in
    40.  Each of its questions is taken to think as long as the longest one seen, and to save
    nothing (for the least) or all of it (for the most).
    """
    share = 1 - _TAIL ** (1 / full.size)
    cost, unseen = (1 - share) * costs.mean(axis=0), share * full.max()
    whole = (1 - share) * full.mean() + unseen
    return np.stack([100 * (1 - (cost + unseen) / whole), 100 * (1 - cost / whole)])


def saving_band(costs: FloatArray, full: FloatArray, *, rng: np.random.Generator) -> FloatArray:
    """Simultaneous 95 % band of the net saving, for a threshold chosen on the same data.

    Parameters
    ----------
    costs : ndarray of float, shape (n_blocks, n_thresholds)
    full : ndarray of float, shape (n_blocks,)
        Cost of full thinking.

    Returns
    -------
    ndarray of float, shape (2, n_thresholds)
        Lower and upper limit in percent.

    Notes
    -----
    Bootstraps the largest studentised deviation over thresholds, drawing blocks of questions with
    replacement (Montiel Olea and Plagborg-Møller 2019, "Simultaneous confidence bands").  The level
    is asymptotic.  Where almost no question stops, or almost every one, no resample tells how many
    unseen ones would, so the band reaches at least to the limits of `_with_unseen`.  It misses the
    saving at the threshold that 40 to 160 questions certified in at most 1.8 % of data sets, by the
    bootstrap alone in up to 99 % (``python -m tests.long --part bands``, at most 500 a cell).
    """
    counts = resample_counts(len(full), _RESAMPLES, rng=rng).astype(np.float64)
    totals = counts @ full
    resampled = 100 * (1 - (counts @ costs) / totals[:, None])  # (n_resamples, n_thresholds)
    saving = 100 * (1 - costs.sum(axis=0) / full.sum())
    error = resampled.std(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        deviation = np.abs(resampled - saving) / error
    largest = np.nan_to_num(deviation, posinf=0.0).max(axis=1)  # a constant saving cannot deviate
    reach = float(np.quantile(largest, 0.95)) * error
    least, most = _with_unseen(costs, full)
    high = np.minimum(np.maximum(saving + reach, most), 100.0)  # no more can be saved
    return np.stack([np.minimum(saving - reach, least), high])


def block_sums(values: FloatArray) -> FloatArray:
    """Sum the rows of each of at most `MOST_BLOCKS` blocks, (n_blocks, n_columns)."""
    blocks = np.arange(len(values)) % MOST_BLOCKS
    return np.stack([np.bincount(blocks, column) for column in values.T], axis=1)


def resample_counts(n_units: int, n_resamples: int, *, rng: np.random.Generator) -> FloatArray:
    """How often each unit is drawn in each resample, (n_resamples, n_units).

    float32 is exact for counts and halves the cost of matrix products.
    """
    draws = rng.integers(n_units, size=(n_resamples, n_units))
    draws += np.arange(n_resamples)[:, None] * n_units
    counts = np.bincount(draws.ravel(), minlength=n_resamples * n_units)
    return counts.reshape(n_resamples, n_units).astype(np.float32)
