"""The binomial tail in plain Python, by which a policy's exact test is repeated without scipy."""

from __future__ import annotations

import math

__all__ = ["binomial_tail"]


def binomial_tail(k: int, n: int, p: float) -> float:
    """Chance of at most `k` successes in `n` trials of chance `p`.

    Summed from near its largest term down, in logarithms, until terms no longer count: exact to
    about 1e-10 relative for any size that a policy may hold, in a few thousand terms at most.
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
