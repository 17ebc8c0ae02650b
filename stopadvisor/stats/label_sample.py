"""The exact test for losses when only some of the differing replies are labelled.

Of n independent questions, D have a reply that differs, and only these can be lost.  The first M of
them, in an order independent of outcomes, are labelled (all, if fewer); l of these are lost.  The
null hypothesis "a share of at least alpha is lost" is rejected if l is small for this D.

It leaves open how many replies differ.  Let q be the share that differs and p the share of lost
ones among them.  Then D is Bin(n, q), and l given D is Bin(min(D, M), p).  The number of losses
allowed never rises with D, so a rejection gets rarer as q or p rises.  Hence the null hypothesis is
rejected most often where p q is exactly alpha, and for q in [a, b] at most as often as at q = a,
p = alpha/b.  The size is bounded in this way on intervals, which are halved until the bound is at
most delta: no grid is trusted between its points.

While D is at most M, every label is known, and the exact binomial test of all n applies at nearly
all of delta; the rest is for larger D.  With M = n it is exactly that test.  Above M, l D/M
estimates the number lost.  Under the null hypothesis its variance is about n alpha (1 - alpha) from
the questions plus n alpha (D - n alpha)/M from the labels.  The estimate must lie k standard
deviations below n alpha, with the smallest k that keeps the size within delta.

Needs only numpy, because a policy's certificate is tested again on load.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.stats.binomial import binomial_mass, binomial_tail, check_level

__all__ = [
    "MOST_SAMPLED", "labelled_first", "most_lost_labelled", "sample_limit", "sample_passes",
    "share_lost",
]  # fmt: skip

MOST_SAMPLED = 20_000
"""Most questions of one test; its cost grows as sqrt(n)."""
_FIRST = 32
"""Number of intervals to begin with."""
_NARROWEST = 2e-4
"""Relative width at which an interval whose bound is still above delta fails the test; that
overstates the size by about 1 %."""
_REACH = 9.0
"""Binomial mass beyond this many standard deviations is left out; `_BEYOND` is added for it."""
_BEYOND = 1e-12
_WIDEST = 16.0
_RESERVED = 0.04
"""Share of delta kept for the case of more differing replies than labels."""
_STEPS = 14
"""Bisection steps in a search for a critical value or a limit."""


def _region(n: int, labels: int, alpha: float, most: int, deviations: float) -> IntArray:
    """Most lost labelled replies for a rejection, by the number that differ; shape (n + 1,)."""
    differing, expected = np.arange(labels + 1, n + 1), n * alpha
    variance = expected * (1 - alpha) + expected * np.maximum(differing - expected, 0) / labels
    allowed = labels / differing * (expected - deviations * np.sqrt(variance))
    above = np.clip(np.floor(allowed + 1e-9), -1, most).astype(np.int64)
    return np.minimum.accumulate(np.concatenate([np.full(labels + 1, most), above]))


def _chance(most: IntArray, labels: int, q: FloatArray, p: FloatArray) -> FloatArray:
    """Upper bound on the probability of rejection at each pair of shares; `q` ascends."""
    n, k = most.size - 1, int(most[0])
    reach = _REACH * np.sqrt(n * q * (1 - q)) + _REACH**2 / 2
    low = max(0, math.floor((n * q - reach).min()))
    high = min(n, math.ceil((n * q + reach).max()))
    q, p = q[:, None], p[:, None]
    differing = np.arange(low, high + 1)
    passes = np.ones((q.size, differing.size))
    # With every label known: F(k; d + 1, p) is F(k; d, p) minus p times the mass at k of d.
    below = np.arange(k, labels)
    every = 1 - np.cumsum(p * binomial_mass(k, below, p), axis=1)  # of k + 1 to `labels`
    between = (differing > k) & (differing <= labels)
    passes[:, between] = every[:, differing[between] - k - 1]
    sampled = np.cumsum(binomial_mass(np.arange(labels + 1), labels, p), axis=1)
    beyond, allowed = differing > labels, most[differing]
    passes[:, beyond] = sampled[:, np.clip(allowed[beyond], 0, labels)]
    passes[:, beyond & (allowed < 0)] = 0.0
    chance = (binomial_mass(differing, n, q) * np.clip(passes, 0.0, 1.0)).sum(axis=1)
    return np.asarray(chance + _BEYOND)


def _is_at_most(most: IntArray, labels: int, alpha: float, delta: float) -> bool:
    """Whether the size of a region is shown to be at most delta."""
    ends = np.geomspace(alpha, 1.0, _FIRST + 1)
    left, right = ends[:-1], ends[1:]
    while left.size:
        high = _chances(most, labels, left, alpha / right)
        left, right = left[high > delta], right[high > delta]
        if (_chances(most, labels, left, alpha / left) > delta).any():
            return False
        if left.size and (right / left).min() < 1 + _NARROWEST:
            return False
        middle = np.sqrt(left * right)
        left, right = (np.sort(np.concatenate(e)) for e in ((left, middle), (middle, right)))
    return True


def _chances(most: IntArray, labels: int, q: FloatArray, p: FloatArray) -> FloatArray:
    """`_chance` in slices, each with a narrow range of likely D."""
    parts = [slice(k, k + _FIRST) for k in range(0, q.size, _FIRST)]
    return np.concatenate([np.empty(0), *(_chance(most, labels, q[k], p[k]) for k in parts)])


def _most_of_all(n: int, labels: int, alpha: float, delta: float) -> int:
    """Most losses that the exact binomial test allows; -1 if even 0 losses fail."""
    low, high = -1, n
    delta *= 1 if labels >= n else 1 - _RESERVED
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if binomial_tail(middle, n, alpha) <= delta else (low, middle)
    return low


@lru_cache(maxsize=256)
def most_lost_labelled(n: int, labels: int, alpha: float, delta: float) -> IntArray:
    """Most lost labelled replies that certify a share below alpha, by the number that differ.

    Parameters
    ----------
    n : int
        Number of questions.
    labels : int
        Number of differing replies that are labelled; all of them if `n` or more.
    alpha, delta : float
        Share of lost replies among all questions, and level of the test.

    Returns
    -------
    ndarray of int, shape (n + 1,)
        Never rises with the number that differ; -1 where even 0 losses fail.
    """
    _check(n, labels, alpha, delta)
    most = _most_of_all(n, labels, alpha, delta)
    found = np.full(n + 1, most)
    if most >= 0 and labels < n:
        # If nothing is rejected beyond M, the size is at most that of the test of all questions.
        best, low, high = math.inf, 0.0, _WIDEST
        for _ in range(_STEPS):
            middle = (low + high) / 2
            if _is_at_most(_region(n, labels, alpha, most, middle), labels, alpha, delta):
                best = high = middle
            else:
                low = middle
        found = _region(n, labels, alpha, most, best)
    found.flags.writeable = False
    return found


def sample_passes(
    lost: int, differing: int, n: int, labels: int, alpha: float, delta: float
) -> bool:
    """Whether `lost` labelled replies, of `differing`, certify a share below alpha."""
    _check(n, labels, alpha, delta)
    most = _most_of_all(n, labels, alpha, delta)
    if lost > most or differing <= labels:
        return lost <= most
    expected = n * alpha
    variance = expected * (1 - alpha) + expected * max(differing - expected, 0.0) / labels
    deviations = (expected - lost * differing / labels) / math.sqrt(variance)
    region = _region(n, labels, alpha, most, deviations)
    return bool(region[differing] >= lost) and _is_at_most(region, labels, alpha, delta)


def labelled_first(differs: BoolArray, order: IntArray, labels: int) -> BoolArray:
    """Which replies of a sample are labelled at each threshold, (n_questions, n_thresholds)."""
    in_order = differs[order]
    found = np.empty_like(differs)
    found[order] = in_order & (in_order.cumsum(axis=0, dtype=np.int32) <= labels)
    return found


def share_lost(lost: int, differing: int, n: int, labels: int) -> float:
    """Estimated share of all questions that are lost."""
    return lost * max(differing / labels, 1.0) / n


@lru_cache(maxsize=1024)
def sample_limit(lost: int, differing: int, n: int, labels: int, delta: float) -> float:
    """One-sided upper limit of the share lost at level 1 - delta, by inverting the test.

    Found by bisection and rounded up, by 1e-4 at most.
    """
    low, high = share_lost(lost, differing, n, labels), 1 - 1e-4
    if not sample_passes(lost, differing, n, labels, high, delta):
        return 1.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        passes = sample_passes(lost, differing, n, labels, middle, delta)
        low, high = (low, middle) if passes else (middle, high)
    return high


def _check(n: int, labels: int, alpha: float, delta: float) -> None:
    if not 1 <= n <= MOST_SAMPLED or labels < 1:
        raise CalibrationError(
            f"a sample of labels takes 1 to {MOST_SAMPLED} questions and 1 label or more, got {n} "
            f"and {labels}"
        )
    check_level("alpha", alpha)
    check_level("delta", delta)
