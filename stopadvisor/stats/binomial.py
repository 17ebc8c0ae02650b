"""Binomial probabilities without scipy, to repeat a policy's exact tests when it is loaded."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from stopadvisor.ground.arrays import FloatArray, IntArray
from stopadvisor.ground.errors import CalibrationError

__all__ = ["binomial_mass", "binomial_tail", "check_level", "log_factorials"]


def check_level(name: str, value: float) -> None:
    """Raise CalibrationError unless a probability lies strictly between 0 and 1."""
    if not 0 < value < 1:
        raise CalibrationError(f"{name} must be in (0, 1), got {value!r}")


@lru_cache(maxsize=8)
def log_factorials(n: int) -> FloatArray:
    """Log factorials: log k! for k = 0…n."""
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])


def binomial_mass(k: IntArray | int, n: IntArray | int, p: FloatArray) -> FloatArray:
    """P(X = k) for X ~ Bin(n, p); arguments broadcast, k at most n."""
    k, n = np.asarray(k), np.asarray(n)
    logs = log_factorials(int(max(k.max(initial=0), n.max(initial=0))))
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 log 0 is 0
        successes = np.where(k == 0, 0.0, k * np.log(p))
        failures = np.where(n == k, 0.0, (n - k) * np.log1p(-p))
    return np.asarray(np.exp(logs[n] - logs[k] - logs[n - k] + successes + failures))


def binomial_tail(k: int, n: int, p: float) -> float:
    """P(X <= k) for X ~ Bin(n, p).

    Sums outwards from near the largest term until terms no longer matter: about 20 sqrt(n p (1 -
    p)) terms.  The relative error is that of `math.lgamma`: about 1e-10 at n = 100,000, 1e-8 at
    ten million.
    """
    if k >= n or p <= 0:
        return 1.0
    if k < 0 or p >= 1:
        return 0.0
    start = min(k, int(n * p))
    odds = math.exp(math.log(p) - math.log1p(-p))
    log_start = (
        math.lgamma(n + 1) - math.lgamma(start + 1) - math.lgamma(n - start + 1)
        + start * math.log(p) + (n - start) * math.log1p(-p)
    )  # fmt: skip
    terms = [1.0]
    term = 1.0
    for j in range(start, 0, -1):
        term *= j / ((n - j + 1) * odds)
        if term < 1e-18:
            break
        terms.append(term)
    term = 1.0
    for j in range(start, k):
        term *= (n - j) * odds / (j + 1)
        if term < 1e-18:
            break
        terms.append(term)
    return min(1.0, math.exp(log_start) * math.fsum(terms))
