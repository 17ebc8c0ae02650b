"""Lost-correct risk: losses, bounds, multiplicity, and how many labels a certificate takes.

Bounds take integer losses and a count, never rates.  Results are typed: a certificate, or the
reason why there is none.  Knows no files, no models and no command line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from stopadvisor.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.errors import CalibrationError

__all__ = [
    "BOUNDS",
    "MULTIPLICITIES",
    "Bound",
    "Certified",
    "Guaranteed",
    "Multiplicity",
    "NotCertified",
    "StopCurve",
    "Tested",
    "certify",
    "labels_needed",
    "last_passed",
    "max_losses",
    "p_values",
    "power",
    "share_of",
    "unspent",
    "upper_limit",
]

Bound = Literal["exact", "bentkus", "hoeffding"]
Tested = Literal["exact", "bentkus", "hoeffding", "betting"]
"""What a certificate rests on: a bound on single questions, or bets on whole groups."""
Multiplicity = Literal["fixed-sequence", "finite-grid"]
BOUNDS: tuple[Bound, ...] = ("exact", "bentkus", "hoeffding")
MULTIPLICITIES: tuple[Multiplicity, ...] = ("fixed-sequence", "finite-grid")

_MOST_LABELS = 1_000_000
"""Largest sample size that `labels_needed` considers."""


# --- Losses along a sequence of thresholds --------------------------------------------------------


@dataclass(frozen=True)
class StopCurve:
    """Where each question stops, for every threshold of a sequence at once.

    Question i stops at the first live checkpoint whose score reaches the threshold.  Thresholds
    descend, from the most careful to the most aggressive; each (question, checkpoint) therefore
    owns one interval ``[low, high)`` of the sequence, so that summing a quantity over questions
    costs O(n_questions · n_checkpoints), whatever the number of thresholds.
    """

    thresholds: FloatArray  # (n_thresholds,) strictly descending
    low: IntArray  # (n_questions, n_checkpoints + 1)
    high: IntArray  # (n_questions, n_checkpoints + 1)

    @classmethod
    def build(cls, scores: FloatArray, live: BoolArray, thresholds: FloatArray) -> StopCurve:
        """Intervals from scores.

        `scores` have shape (n_questions, n_checkpoints), and so has `live`: where it is not, the
        trace is over and no stop can happen.  `thresholds`, (n_thresholds,), descend strictly.

        Raises
        ------
        CalibrationError
            Scores that are not finite, or thresholds out of order.
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
        """Sum a per-stop quantity over questions, at every threshold.

        Parameters
        ----------
        values : ndarray, shape (n_questions, n_checkpoints + 1)
            Last column: never stopped.
        blocks : ndarray of int, shape (n_questions,), optional
            Sum within blocks of questions instead of over all.

        Returns
        -------
        ndarray of float, shape (n_blocks, n_thresholds)
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
        """A per-stop property of each question, at every threshold.

        Parameters
        ----------
        values : ndarray of bool, shape (n_questions, n_checkpoints + 1)
            Last column: never stopped.

        Returns
        -------
        ndarray of bool, shape (n_questions, n_thresholds)
        """
        n, m = self.low.shape
        steps = np.zeros((n, self.thresholds.size + 1), dtype=np.int8)
        for column in range(m):  # intervals of one question share no threshold
            owned = np.flatnonzero(values[:, column])
            steps[owned, self.low[owned, column]] += 1
            steps[owned, self.high[owned, column]] -= 1
        return np.asarray(np.cumsum(steps, axis=1, dtype=np.int8)[:, :-1] > 0)

    def stops(self, index: int) -> IntArray:
        """Checkpoint at which each question stops at one threshold; n_checkpoints for never.

        Shape (n_questions,).
        """
        inside = (self.low <= index) & (index < self.high)
        return np.asarray(inside.argmax(axis=1), dtype=np.int64)


# --- Bounds ---------------------------------------------------------------------------------------


def p_values(losses: IntArray | int, n: int, alpha: float, bound: Bound = "exact") -> FloatArray:
    """p-value of "the risk is above alpha" for observed losses.

    Parameters
    ----------
    losses : int or ndarray of int
        Lost-correct questions among `n`.
    n : int
        Calibration questions.
    alpha : float
        Risk to be excluded, in (0, 1).
    bound : {"exact", "bentkus", "hoeffding"}

    Returns
    -------
    ndarray of float, shape of `losses`

    References
    ----------
    Exact: the binomial tail, sharp for 0/1 losses.  Hoeffding–Bentkus and Hoeffding: Bates et
    al. (2021), "Distribution-free, risk-controlling prediction sets"; Angelopoulos et al. (2021),
    "Learn then Test".
    """
    k = np.asarray(losses)
    if not np.issubdtype(k.dtype, np.integer):
        raise CalibrationError(f"losses must be integer counts, got dtype {k.dtype}")
    if n < 1 or (k.size and (k.min() < 0 or k.max() > n)):
        raise CalibrationError(f"losses must lie in 0 … n with n >= 1, got n={n!r}")
    _check_level("alpha", alpha)
    return _tails(k, n, alpha, bound)


def _tails(k: IntArray, n: IntArray | int, alpha: float, bound: Bound) -> FloatArray:
    """`p_values` without its checks; `n` may be an array of the shape of `k`."""
    if bound == "exact":
        return np.asarray(scipy.stats.binom.cdf(k, n, alpha), dtype=np.float64)
    rate = np.minimum(k / n, alpha)
    if bound == "hoeffding":
        return np.asarray(np.exp(-2 * n * (alpha - rate) ** 2), dtype=np.float64)
    if bound == "bentkus":
        with np.errstate(divide="ignore", invalid="ignore"):
            at_rate = np.where(rate > 0, rate * np.log(rate / alpha), 0.0)
            divergence = at_rate + (1 - rate) * np.log((1 - rate) / (1 - alpha))
        chernoff = np.exp(-n * divergence)
        return np.asarray(
            np.minimum(1.0, np.minimum(chernoff, math.e * scipy.stats.binom.cdf(k, n, alpha)))
        )
    raise CalibrationError(f"bound must be one of {BOUNDS}, got {bound!r}")


def upper_limit(losses: int, n: int, delta: float, bound: Bound = "exact") -> float:
    """Upper confidence limit of the risk at level 1 - delta, for one threshold fixed beforehand.

    The inverse of `p_values`: the largest alpha that is not excluded.
    """
    _check_level("delta", delta)
    if losses >= n:
        return 1.0
    if bound == "exact":
        return float(scipy.stats.beta.ppf(1 - delta, losses + 1, n - losses))
    if bound == "hoeffding":
        return min(1.0, losses / n + math.sqrt(math.log(1 / delta) / (2 * n)))
    low, high = max(losses / n, 1e-12), 1 - 1e-12

    def excess(alpha: float) -> float:
        return float(p_values(losses, n, alpha, bound)) - delta

    if excess(low) <= 0:
        return low
    return float(scipy.optimize.brentq(excess, low, high)) if excess(high) < 0 else 1.0


@lru_cache(maxsize=4096)  # choosing and planning ask for a few of them thousands of times
def max_losses(n: int, alpha: float, delta: float, bound: Bound = "exact") -> int:
    """Most losses among `n` that still exclude a risk above alpha; -1 if not even none does."""
    _check_level("alpha", alpha)
    return int(_most_losses(np.array([n]), alpha, delta, bound)[0]) if n >= 1 else -1


def unspent(n: int, alpha: float, delta: float, bound: Bound = "exact") -> float:
    """What the exact test of one sequence leaves of delta.

    Losses are whole numbers, so the test that allows k of them is wrong with probability
    F(k; n, alpha) and no more.  The rest can go to a second sequence: a union bound over both
    stays within delta.  0 for other bounds, whose sizes are not known exactly.
    """
    most = max_losses(n, alpha, delta, bound)
    if bound != "exact" or most < 0:
        return 0.0
    return max(0.0, delta - float(p_values(most, n, alpha)))


# --- Certification along a fixed sequence or a grid -----------------------------------------------


@dataclass(frozen=True)
class Guaranteed:
    """What was shown of one loss, where several are limited at once."""

    loss: str
    alpha: float
    n: int
    lost: int
    gained: int
    upper: float
    """Upper limit of its mean at this threshold alone (pointwise): not the claim."""
    category: str | None
    """Of whose questions alone it speaks; None for all."""


@dataclass(frozen=True)
class Certified:
    """A threshold whose risk is at most alpha with confidence 1 - delta."""

    index: int
    """Index into the sequence of thresholds."""
    alpha: float
    delta: float
    """Error probability that this certificate uses up."""
    bound: Tested
    multiplicity: Multiplicity
    n: int
    losses: int
    upper: float
    """Upper limit at this threshold alone (pointwise): not the claim."""
    groups: int | None = None
    """Groups that the questions came in; None where each entered for itself, as the next."""
    group_cap: int | None = None
    """Most questions that a group can hold."""
    gained: int | None = None
    """Of a drop: questions that stopping made right; `losses` are those that it made wrong."""
    guarantees: tuple[Guaranteed, ...] = ()
    """All that holds at once, the first as above; empty where it is alone."""


@dataclass(frozen=True)
class NotCertified:
    """Why nothing could be certified, and how many calibration labels it would take."""

    reason: str
    labels_needed: int | None
    """Calibration questions in all; None when no number suffices at the expected risk."""
    assumed_risk: float | None = None
    """The risk at which so many would do; 0 where fewer could not even certify no loss."""


def certify(
    losses: IntArray,
    n: IntArray | int,
    *,
    alpha: float,
    delta: float,
    bound: Bound = "exact",
    multiplicity: Multiplicity = "fixed-sequence",
    expected_risk: float | None = None,
    counted: str = "calibration questions",
) -> Certified | NotCertified:
    """Find the most aggressive threshold whose risk is at most alpha.

    Parameters
    ----------
    losses : ndarray of int, shape (n_thresholds,)
        Lost-correct questions among the `n` calibration questions, thresholds in their order
        fixed beforehand, from careful to aggressive.
    n : int or ndarray of int, shape (n_thresholds,)
        Calibration questions, independent of everything that chose the thresholds; so are their
        numbers where every threshold has its own.
    bound, multiplicity : str
        ``fixed-sequence`` tests in order, each at the full delta, and stops at the first failure;
        ``finite-grid`` tests all at delta / n_thresholds (the paper's union bound).
    expected_risk : float, optional
        Risk at the most careful useful threshold, known from elsewhere; sizes `labels_needed`.
    counted : str
        What `n` counts, in the words of a refusal.

    References
    ----------
    Angelopoulos, Bates, Candès, Jordan and Lei (2021), "Learn then Test", fixed-sequence testing.
    """
    _check_level("alpha", alpha)
    _check_level("delta", delta)
    if multiplicity not in MULTIPLICITIES:
        raise CalibrationError(
            f"multiplicity must be one of {MULTIPLICITIES}, got {multiplicity!r}"
        )
    share = share_of(delta, len(losses), multiplicity)
    sizes = np.broadcast_to(n, np.shape(losses))
    distinct, which = np.unique(sizes, return_inverse=True)
    limits = [max_losses(int(size), alpha, share, bound) for size in distinct]
    passed = np.asarray(losses) <= np.array(limits, dtype=np.int64)[which]
    last = last_passed(passed, multiplicity)
    if last >= 0:
        found, size = int(losses[last]), int(sizes[last])
        upper = upper_limit(found, size, delta, bound)
        return Certified(last, alpha, delta, bound, multiplicity, size, found, upper)
    size = int(sizes[0]) if sizes.size else int(np.max(n))
    most = max_losses(size, alpha, share, bound)
    # So few say next to nothing of the risk: what they would take at the least is certain.
    expected = 0.0 if expected_risk is None or most < 0 else expected_risk
    needed = labels_needed(alpha, share, expected_risk=expected, bound=bound)
    if most < 0:
        reason = (
            f"{size} {counted} cannot exclude a risk above {alpha:g} at confidence "
            f"{1 - share:g} by the {bound} test, not even with no loss"
        )
    else:
        reason = (
            f"the most careful threshold already loses {int(losses[0])} of {size} {counted}; at "
            f"most {most} are allowed"
            if len(losses)
            else "there is no threshold to test"
        )
    return NotCertified(reason, needed, expected)


def share_of(delta: float, n_thresholds: int, multiplicity: Multiplicity) -> float:
    """Delta of one threshold's own test."""
    return delta if multiplicity == "fixed-sequence" else delta / max(n_thresholds, 1)


def last_passed(passed: BoolArray, multiplicity: Multiplicity) -> int:
    """Position that is certified where each threshold passes or not; -1 for none."""
    if multiplicity == "fixed-sequence":
        failures = np.flatnonzero(~passed)
        return (int(failures[0]) if failures.size else passed.size) - 1
    successes = np.flatnonzero(passed)
    return int(successes[-1]) if successes.size else -1


# --- Sample size ----------------------------------------------------------------------------------


def power(
    n: int, alpha: float, delta: float, expected_risk: float, bound: Bound = "exact"
) -> float:
    """Chance that `n` calibration questions certify a threshold of the expected risk."""
    most = max_losses(n, alpha, delta, bound)
    return 0.0 if most < 0 else float(scipy.stats.binom.cdf(most, n, expected_risk))


def labels_needed(
    alpha: float,
    delta: float,
    *,
    expected_risk: float,
    power_wanted: float = 0.8,
    bound: Bound = "exact",
) -> int | None:
    """Smallest n such that it and all larger ones certify with the power wanted.

    Power is a sawtooth in n, so "the smallest n that reaches it" would often fail at n + 1.

    The threshold is expected to have the risk `expected_risk`, in [0, 1).  None where that is not
    below alpha, or more than a million would be needed.
    """
    _check_level("alpha", alpha)
    _check_level("delta", delta)
    _check_level("power", power_wanted)
    if not 0 <= expected_risk < 1:
        raise CalibrationError(f"expected risk must be in [0, 1), got {expected_risk!r}")
    if expected_risk >= alpha:
        return None

    def reaches(losses: int, more: int = 0) -> bool:
        """Whether the power is reached at the last size that allows so many losses at most."""
        size = _last_size(losses, alpha, delta, bound) + more
        return float(scipy.stats.binom.cdf(losses, size, expected_risk)) >= power_wanted

    # Between two sizes at which a further loss is allowed the power falls, so that it is lowest at
    # the last size of each tooth.  One question more gives a bound that rises with the losses.
    most = max_losses(_MOST_LABELS, alpha, delta, bound)
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
    needed = _last_size(high - 1, alpha, delta, bound) + 1
    return needed if needed <= _MOST_LABELS else None


def _last_size(losses: int, alpha: float, delta: float, bound: Bound) -> int:
    """Largest sample that allows no more than so many losses, found by bisection."""
    low, high = losses + 1, max(2 * (losses + 1), 1)
    while max_losses(high, alpha, delta, bound) <= losses:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        allowed = max_losses(middle, alpha, delta, bound)
        low, high = (middle, high) if allowed <= losses else (low, middle)
    return low


def _most_losses(sizes: IntArray, alpha: float, delta: float, bound: Bound) -> FloatArray:
    """`max_losses` of many sizes at once."""
    if bound == "exact":
        # The smallest k with cdf >= delta; the answer is just below it, or at equality.
        most = scipy.stats.binom.ppf(delta, sizes, alpha)
        within = scipy.stats.binom.cdf(most, sizes, alpha) <= delta
        return np.asarray(np.where(within, most, most - 1), dtype=np.float64)
    # Below alpha p-values grow with the losses: bisect between none and a share of alpha.
    low, high = np.full(sizes.shape, -1), np.ceil(sizes * alpha).astype(np.int64)
    while (open_ := high - low > 1).any():
        middle = (low + high)[open_] // 2
        passed = _tails(middle, sizes[open_], alpha, bound) <= delta
        low[open_] = np.where(passed, middle, low[open_])
        high[open_] = np.where(passed, high[open_], middle)
    return low.astype(np.float64)


def _check_level(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise CalibrationError(f"{name} must be in (0, 1), got {value!r}")
