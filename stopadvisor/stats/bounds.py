"""Losses along a sequence of thresholds, the exact test, and the labels a certificate needs.

Bounds take integer losses and a count, never rates.  The result is a certificate or the reason for
having none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.stats.binomial import check_level
from stopadvisor.stats.label_sample import share_lost

__all__ = [
    "Certified", "NotCertified", "StopCurve", "labels_needed", "last_passed", "max_losses", "power",
    "unspent", "upper_limit",
]  # fmt: skip

_MOST_LABELS = 1_000_000
"""Largest sample size that `labels_needed` considers."""


# --- Losses along a sequence of thresholds --------------------------------------------------------


@dataclass(frozen=True)
class StopCurve:
    """Where each question stops, for all thresholds of a sequence at once.

    A question stops at its first live checkpoint whose score reaches the threshold.  Thresholds
    descend from careful to aggressive, so each checkpoint of a question owns one interval
    ``[low, high)`` of the sequence.  Sums over questions cost O(n_questions · n_checkpoints +
    n_thresholds).
    """

    thresholds: FloatArray  # (n_thresholds,) strictly descending
    low: IntArray  # (n_questions, n_checkpoints + 1)
    high: IntArray  # (n_questions, n_checkpoints + 1)

    @classmethod
    def build(cls, scores: FloatArray, live: BoolArray, thresholds: FloatArray) -> StopCurve:
        """Build intervals from `scores` and `live`, both (n_questions, n_checkpoints).

        Where a checkpoint is not live the trace is over, so nothing stops there.  Raises
        CalibrationError for scores that are not finite or `thresholds` that do not descend.
        """
        if not np.isfinite(scores[live]).all():
            raise CalibrationError("stopping scores must be finite, got NaN or infinity")
        if np.any(np.diff(thresholds) >= 0):
            raise CalibrationError("thresholds must be strictly descending")
        best = np.maximum.accumulate(np.where(live, scores, -np.inf), axis=1)
        n_questions = scores.shape[0]
        # First index whose threshold is <= the best score so far; -inf never reaches any.
        reached = thresholds.size - np.searchsorted(thresholds[::-1], best, side="right")
        low = np.zeros((n_questions, scores.shape[1] + 1), dtype=np.int64)
        low[:, :-1] = reached
        high = np.empty_like(low)
        high[:, 0] = thresholds.size
        high[:, 1:] = reached
        return cls(thresholds, low, high)

    def totals(
        self, values: NDArray[Any], blocks: IntArray | None = None, n_blocks: int = 1
    ) -> FloatArray:
        """Sum a quantity over all stops, at every threshold; shape (n_blocks, n_thresholds).

        `values` has shape (n_questions, n_checkpoints + 1); its last column is for questions that
        never stop.  `blocks`, (n_questions,), sums within blocks of questions.
        """
        width = self.thresholds.size + 1
        base = np.zeros(len(self.low), dtype=np.int64) if blocks is None else blocks
        offset = base[:, None] * width
        value = np.asarray(values, dtype=np.float64).ravel()
        size = n_blocks * width
        steps = np.bincount((offset + self.low).ravel(), value, size)
        steps -= np.bincount((offset + self.high).ravel(), value, size)
        return np.asarray(np.cumsum(steps.reshape(n_blocks, width), axis=1)[:, :-1], np.float64)

    def each(self, values: NDArray[Any]) -> BoolArray:
        """Whether each question's stop has a property, (n_questions, n_thresholds).

        `values` is bool, (n_questions, n_checkpoints + 1), with the last column as in `totals`.
        """
        n, m = self.low.shape
        steps = np.zeros((n, self.thresholds.size + 1), dtype=np.int8)
        for column in range(m):  # intervals of one question share no threshold
            owned = np.flatnonzero(values[:, column])
            steps[owned, self.low[owned, column]] += 1
            steps[owned, self.high[owned, column]] -= 1
        return np.asarray(np.cumsum(steps, axis=1, dtype=np.int8)[:, :-1] > 0)

    def stops(self, index: int) -> IntArray:
        """Each question's checkpoint of stopping at one threshold; n_checkpoints for never."""
        inside = (self.low <= index) & (index < self.high)
        return np.asarray(inside.argmax(axis=1), dtype=np.int64)


def upper_limit(losses: int, n: int, delta: float) -> float:
    """One-sided Clopper-Pearson upper limit, at level 1 - delta, of the risk at one threshold.

    The smallest alpha that `max_losses` lets these losses certify.  The threshold must be fixed
    before the losses are counted.
    """
    check_level("delta", delta)
    return 1.0 if losses >= n else float(scipy.stats.beta.ppf(1 - delta, losses + 1, n - losses))


@lru_cache(maxsize=4096)  # choosing and planning repeat a few arguments thousands of times
def max_losses(n: int, alpha: float, delta: float) -> int:
    """Most losses among `n` that certify a risk of at most alpha; -1 if even 0 losses fail.

    The largest k with F(k; n, alpha) <= delta, F the binomial distribution function: at a risk
    above alpha, k losses or fewer have probability delta at most.
    """
    check_level("alpha", alpha)
    check_level("delta", delta)
    if n < 1:
        return -1
    # The smallest k with cdf >= delta: the answer is just below it, or k itself at equality.
    most = int(scipy.stats.binom.ppf(delta, n, alpha))
    return most if scipy.stats.binom.cdf(most, n, alpha) <= delta else most - 1


def unspent(n: int, alpha: float, delta: float) -> float:
    """The part of delta that one sequence's exact test leaves for a second one (union bound).

    Losses are integers, so the test that allows k of them errs with probability F(k; n, alpha) at
    most, usually less than delta.
    """
    most = max_losses(n, alpha, delta)
    return 0.0 if most < 0 else max(0.0, delta - float(scipy.stats.binom.cdf(most, n, alpha)))


# --- Certification along a fixed sequence ---------------------------------------------------------


@dataclass(frozen=True)
class Certified:
    """A threshold, and the claim that its risk is at most alpha, at confidence 1 - delta."""

    index: int
    """Index into the sequence of thresholds."""
    alpha: float
    delta: float
    """Error probability that this certificate uses."""
    n: int
    losses: int
    upper: float
    """Upper limit at this threshold alone (pointwise); the claim is alpha."""
    gained: int | None = None
    """For a drop, questions that stopping made right; `losses` counts those made wrong."""
    guarantees: tuple[Certified, ...] = ()
    """All limits that hold at once, this one first; empty if there is only one."""
    both: int | None = None
    """With two traces, questions that lost both replies; `losses` then counts replies."""
    one: int | None = None
    none: int | None = None
    differing: int | None = None
    """If labels were planned, the replies that differ; `losses` are those lost among the first
    `planned_labels` of them."""
    planned_labels: int | None = None
    """Number of labels planned for."""

    @property
    def traces(self) -> int:
        """Traces per question that `losses` counts."""
        return 1 if self.both is None else 2

    @property
    def risk(self) -> float:
        """Share of replies lost; for a drop, lost minus gained."""
        if self.differing is not None and self.planned_labels is not None:
            return share_lost(self.losses, self.differing, self.n, self.planned_labels)
        return (self.losses - (self.gained or 0)) / (self.n * self.traces)


@dataclass(frozen=True)
class NotCertified:
    """Why nothing was certified, and how many calibration labels would help."""

    reason: str
    """Why nothing was certified."""
    labels_needed: int | None
    """Calibration labels that suffice four times in five; null if no number does at the expected
    risk."""
    assumed_risk: float | None
    """Risk that `labels_needed` assumes; 0 if there are too few labels to certify zero losses."""


def last_passed(passed: BoolArray) -> int:
    """Index of the last threshold before the first failure; -1 for none.

    Fixed-sequence testing: in an order fixed beforehand each threshold is tested at all of delta,
    up to the first failure, and the probability of any false certificate is at most delta.

    References
    ----------
    Angelopoulos, Bates, Candès, Jordan and Lei (2021), "Learn then Test".
    """
    failures = np.flatnonzero(~passed)
    return (int(failures[0]) if failures.size else passed.size) - 1


# --- Sample size ----------------------------------------------------------------------------------


def power(n: int, alpha: float, delta: float, expected_risk: float) -> float:
    """Exact probability that `n` questions certify a threshold whose risk is `expected_risk`."""
    most = max_losses(n, alpha, delta)
    return 0.0 if most < 0 else float(scipy.stats.binom.cdf(most, n, expected_risk))


def labels_needed(
    alpha: float, delta: float, *, expected_risk: float, power_wanted: float = 0.8
) -> int | None:
    """Smallest n from which on every sample has the power wanted.

    Power is a sawtooth in n: the first n that reaches it may fail at n + 1.  None if
    `expected_risk` is not below alpha, or more than a million labels would be needed.
    """
    check_level("alpha", alpha)
    check_level("delta", delta)
    check_level("power", power_wanted)
    if not 0 <= expected_risk < 1:
        raise CalibrationError(f"expected risk must be in [0, 1), got {expected_risk!r}")
    if expected_risk >= alpha:
        return None

    def reaches(losses: int, more: int = 0) -> bool:
        size = _last_size(losses, alpha, delta) + more
        return float(scipy.stats.binom.cdf(losses, size, expected_risk)) >= power_wanted

    # Power falls until one more loss is allowed, so it is lowest at the last size of each tooth.
    # With one question more it is a lower bound that rises with the losses.
    most = max_losses(_MOST_LABELS, alpha, delta)
    low, high = -1, 0
    while not reaches(high, more=1):
        if high >= most:
            return None
        low, high = high, min(2 * high + 1, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle, more=1) else (middle, high)
    while high > 0 and reaches(high - 1):
        high -= 1
    needed = _last_size(high - 1, alpha, delta) + 1
    return needed if needed <= _MOST_LABELS else None


def _last_size(losses: int, alpha: float, delta: float) -> int:
    """Largest sample that allows at most `losses`, by bisection."""
    low, high = losses + 1, max(2 * (losses + 1), 1)
    while max_losses(high, alpha, delta) <= losses:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        allowed = max_losses(middle, alpha, delta)
        low, high = (middle, high) if allowed <= losses else (low, middle)
    return low
