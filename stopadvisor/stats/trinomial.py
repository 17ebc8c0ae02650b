"""The exact one-sided test of a mean of -1, 0 and 1, for a drop or for two traces.

Of n independent questions some are lost (+1), some gained (-1), the others unchanged.  The null
hypothesis "the mean is at least alpha" is rejected if Tango's score statistic is small.  It leaves
the share gained open, so the size is the maximum over all such shares, bounded at grid points and
between them.

With two traces per question, "both lost minus none lost" has mean 2 risk - 1 however the two
depend on each other, so the same test applies at the limit 2 alpha - 1.

Needs only numpy, because a policy's certificate is tested again on load.

References
----------
Tango (1998), "Equivalence test and confidence interval for the difference in proportions for the
paired-sample design" (the statistic).  Hsueh, Liu and Chen (2001), "Unconditional exact tests for
equivalence or noninferiority for paired binary endpoints" (its exact size).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from stopadvisor.ground.arrays import FloatArray, IntArray
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.stats.binomial import check_level, log_factorials

__all__ = [
    "MOST_QUESTIONS", "drop_limit", "drop_passes", "drop_power", "drop_size", "limit_of_pairs",
    "most_lost", "risk_of_pairs",
]  # fmt: skip

MOST_QUESTIONS = 20_000
"""Most questions of one test; its cost grows as n^1.5."""
_SPACING = 0.037
"""Angle between grid points times sqrt(n), which makes bounds loose by about 2e-4."""
_REACH = 9.0
"""Binomial mass beyond this many standard deviations is left out."""
_ROUNDING = 1e-9
_STEPS = 13
"""Bisection steps in a search for a critical value."""


def _score(lost: IntArray, gained: IntArray, n: int, alpha: float) -> FloatArray:
    """Tango's statistic, standardised by the variance at the constrained maximum likelihood."""
    b = lost * (1 + alpha) + gained * (1 - alpha) - 2 * alpha * n
    c = gained * alpha * (1 - alpha)
    share = (b + np.sqrt(np.maximum(b * b + 8.0 * n * c, 0.0))) / (4 * n)  # gained, under the null
    share = np.clip(share, max(0.0, -alpha), (1 - alpha) / 2)
    variance = 2 * share + alpha - alpha**2
    return np.asarray((lost - gained - n * alpha) / np.sqrt(n * np.maximum(variance, 1e-300)))


def _region(n: int, alpha: float, critical: float, seen: tuple[int, int] | None = None) -> IntArray:
    """Most lost among d changed questions for a rejection; shape (n + 1,).

    Widened to be monotone: one loss fewer or one gain more never undoes a rejection.  Then the
    null hypothesis is rejected most often where the mean is exactly alpha.
    """
    changed = np.arange(n + 1)
    low, high = np.full(n + 1, -1), changed + 1
    while (open_ := high - low > 1).any():
        middle = np.clip((low + high) // 2, 0, changed)
        passes = _score(middle, changed - middle, n, alpha) <= critical
        low = np.where(open_ & passes, middle, low)
        high = np.where(open_ & ~passes, middle, high)
    if seen is not None:
        low[sum(seen)] = max(low[sum(seen)], seen[0])
    low = np.maximum.accumulate(low)
    return np.asarray(changed + np.maximum.accumulate((low - changed)[::-1])[::-1])


def _chance(most: IntArray, lost: FloatArray, gained: FloatArray) -> FloatArray:
    """Probability of rejection at each pair of shares; shape of `lost`."""
    found = np.empty(lost.size)
    rows = 24  # neighbours on a grid, where about the same counts are likely
    for start in range(0, lost.size, rows):
        part = slice(start, start + rows)
        found[part] = _chance_of_some(most, lost[part, None], gained[part, None])
    return found


def _likely(n: int, shares: FloatArray) -> tuple[int, int]:
    """Range of counts outside which a binomial with any of these shares has less than 1e-16."""
    low, high = float(shares.min()), float(shares.max())
    reach = _REACH * (math.sqrt(n * max(high * (1 - high), low * (1 - low), 0.0)) + 1) + _REACH
    if low < 0.5 < high:
        reach = _REACH * (math.sqrt(n) / 2 + 2)
    return max(0, math.floor(n * low - reach)), min(n, math.ceil(n * high + reach))


def _chance_of_some(most: IntArray, lost: FloatArray, gained: FloatArray) -> FloatArray:
    # Given d changed questions, the number lost is binomial.  Its distribution function at most[d]
    # follows from that of d - 1 at most[d - 1], as the two limits differ by at most 1.
    n = most.size - 1
    logs, changed = log_factorials(n), lost + gained
    first, last = _likely(n, changed)
    d, most = np.arange(first, last + 1), most[first : last + 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        log_lost, log_gained = np.log(lost / changed), np.log(gained / changed)
        log_changed, log_same = np.log(changed), np.log1p(-changed)

    def times(count: IntArray, log: FloatArray) -> FloatArray:
        with np.errstate(invalid="ignore"):  # 0 log 0 is 0
            return np.where(count == 0, 0.0, count * log)

    def mass(k: IntArray, of: IntArray) -> FloatArray:
        inside = (k >= 0) & (k <= of)
        k = np.clip(k, 0, of)
        exponent = logs[of] - logs[k] - logs[of - k]
        exponent = exponent + times(k, log_lost) + times(of - k, log_gained)
        return np.where(inside, np.exp(exponent), 0.0)

    steps = np.empty((lost.shape[0], d.size))
    begin = np.arange(_likely(first, lost / changed)[0], most[0] + 1)
    steps[:, 0] = mass(begin, np.full(begin.shape, first)).sum(axis=1)
    steps[:, 1:] = -(lost / changed) * mass(most[:-1], d[:-1])
    rises = np.flatnonzero(np.diff(most)) + 1
    steps[:, rises] += mass(most[rises], d[rises])
    within = np.clip(np.cumsum(steps, axis=1), 0.0, 1.0)
    exponent = logs[n] - logs[d] - logs[n - d] + times(d, log_changed) + times(n - d, log_same)
    return np.asarray((np.exp(exponent) * within).sum(axis=1))


def drop_size(most: IntArray, alpha: float) -> float:
    """Upper bound on a monotone region's size: the largest chance to reject a mean >= alpha.

    `most`, (n + 1,), is the most lost among d changed questions for a rejection.

    Notes
    -----
    The mean is alpha, and the smaller of the two shares is open.  Between two grid points at
    distance h the chance P exceeds the larger of theirs by at most h^2/8 max|P''|.  Each question's
    density is linear in the open share, so P'' is the covariance of the rejection with a sum over
    pairs of uncorrelated scores: |P''| <= sqrt(2 n (n - 1) P) I, where I is the Fisher information
    of one question.  That is a quadratic inequality in sqrt(P).  At either end, where I is
    unbounded, monotonicity bounds P by the corner with the fewest lost and the most gained.
    """
    n = most.size - 1
    top = (1 - abs(alpha)) / 2
    angles = np.linspace(0, math.pi / 2, max(16, math.ceil(math.pi / 2 * math.sqrt(n) / _SPACING)))
    open_ = top * np.sin(angles) ** 2
    # The outermost intervals are so short that a question hardly ever falls into them.
    open_[0], open_[-1] = min(1e-3 / n, open_[1] / 2), top - min(1e-3 / n, (top - open_[-2]) / 2)
    more_lost, more_gained = max(alpha, 0.0), max(-alpha, 0.0)
    at = _chance(most, open_ + more_lost, open_ + more_gained)
    left, right = open_[:-1], open_[1:]
    information = 1 / (left + more_lost) + 1 / (left + more_gained) + 2 / (top - right)
    curvature = (right - left) ** 2 / 8 * math.sqrt(2.0 * n * (n - 1)) * information
    highest = np.maximum(at[:-1], at[1:])
    root = (curvature + np.sqrt(curvature**2 + 4 * highest)) / 2
    corners = _chance(
        most, np.array([0.0, open_[-1]]) + more_lost, np.array([open_[0], top]) + more_gained
    )
    return float(min(1.0, max(float((root**2).max()), float(corners.max())) + _ROUNDING))


def _tried(most: IntArray, alpha: float, n_points: int) -> float:
    """Lower bound on the size: the largest chance at a few shares."""
    top = (1 - abs(alpha)) / 2
    open_ = top * np.sin(np.linspace(0, math.pi / 2, n_points + 2)[1:-1]) ** 2
    return float(_chance(most, open_ + max(alpha, 0.0), open_ + max(-alpha, 0.0)).max())


def drop_passes(
    lost: int, gained: int, n: int, alpha: float, delta: float, *, quick: bool = False
) -> bool:
    """Whether these counts reject "the mean is at least alpha" at level delta.

    `quick` bounds the size from below, at 96 shares, in a few hundredths of a second.  If that
    says no, so does the full test; a yes is not a proof.
    """
    _check(n, alpha, delta)
    counts = np.array([lost]), np.array([gained])
    most = _region(n, alpha, float(_score(*counts, n, alpha)[0]), (lost, gained))
    return (_tried(most, alpha, 96) if quick else drop_size(most, alpha)) <= delta


@lru_cache(maxsize=256)
def _test(n: int, alpha: float, delta: float) -> IntArray:
    """The region of about the largest critical value whose size is at most delta; (n + 1,)."""
    low, high = -8.0, 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        few = 16 + math.ceil(4 * math.sqrt(n))
        inside = _tried(_region(n, alpha, middle), alpha, few) <= delta
        low, high = (middle, high) if inside else (low, middle)
    # Tried at a few shares only, the region may be slightly too wide.
    step = 1e-3
    while drop_size(found := _region(n, alpha, low), alpha) > delta:
        low, step = low - step, 2 * step
        if low < -40:
            found = np.full(n + 1, -1)
            break
    found.flags.writeable = False
    return found


@lru_cache(maxsize=256)
def most_lost(n: int, alpha: float, delta: float) -> IntArray:
    """Most lost questions that reject "the mean is at least alpha", by the number gained.

    Parameters
    ----------
    alpha : float
        In (-1, 1); negative for a rise.

    Returns
    -------
    ndarray of int, shape (n + 1,)
        -1 where even 0 losses do not reject.
    """
    _check(n, alpha, delta)
    most = _test(n, alpha, delta)
    changed = np.arange(n + 1)
    last = np.searchsorted(changed - most, changed, side="right") - 1
    found: IntArray = np.maximum(last - changed, -1)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=4096)
def drop_limit(lost: int, gained: int, n: int, delta: float) -> float:
    """One-sided upper limit of the mean at level 1 - delta, by inverting the test.

    Found by bisection and rounded up, by 2e-4 at most.
    """
    low, high = max((lost - gained) / n, -0.999), 0.99
    if not drop_passes(lost, gained, n, high, delta):
        return 1.0
    while high - low > 1e-4:
        middle = (low + high) / 2 or -1e-12  # the test cannot take 0; a smaller limit is stricter
        passes = drop_passes(lost, gained, n, middle, delta, quick=True)
        low, high = (low, middle) if passes else (middle, high)
    while not drop_passes(lost, gained, n, high, delta):
        high += 1e-4
    return min(high, 1.0)


def limit_of_pairs(alpha: float) -> float:
    """The mean of "both lost minus none lost" at a risk of alpha."""
    return 2 * alpha - 1 or -1e-12  # the test cannot take 0; a smaller limit is stricter


def risk_of_pairs(both: int, none: int, n: int, delta: float) -> float:
    """One-sided upper limit of the risk at level 1 - delta, from `n` questions of two traces."""
    return (drop_limit(both, none, n, delta) + 1) / 2


def drop_power(n: int, alpha: float, delta: float, lost: float, gained: float) -> float:
    """Power: chance that `n` questions reject a mean >= alpha, given the shares lost and gained."""
    _check(n, alpha, delta)
    if lost + gained <= 0:
        return float(most_lost(n, alpha, delta)[0] >= 0)
    return float(_chance(_test(n, alpha, delta), np.array([lost]), np.array([gained]))[0])


def _check(n: int, alpha: float, delta: float) -> None:
    if not 1 <= n <= MOST_QUESTIONS:
        raise CalibrationError(
            f"the test of a drop takes 1 to {MOST_QUESTIONS} questions, got {n}: the exact size of "
            "a larger one takes too long"
        )
    if not -1 < alpha < 1 or alpha == 0:
        raise CalibrationError(f"alpha must be in (-1, 1) and not 0, got {alpha!r}")
    check_level("delta", delta)
