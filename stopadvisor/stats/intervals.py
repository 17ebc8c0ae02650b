"""Intervals for counts: a share, and the difference of two paired shares.

Both depend on counts alone, so they keep their meaning where nothing or everything was counted and
a bootstrap would give a point.  Questions are independent; where they came from is not known here.
"""

from __future__ import annotations

import math

import scipy

from stopadvisor.ground.errors import CalibrationError

__all__ = ["exact_interval", "paired_difference"]

_EDGE = 1 - 1e-12
"""Differences of ±1 are certain events, at which the score is not defined."""


def exact_interval(count: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Clopper–Pearson interval of a share."""
    if not 0 <= count <= n or n < 1:
        raise CalibrationError(f"a share needs 0 <= count <= n and n >= 1, got {count!r} of {n!r}")
    found = scipy.stats.binomtest(count, n).proportion_ci(level, method="exact")
    return float(found.low), float(found.high)


def paired_difference(gains: int, losses: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Score interval of ``(gains - losses) / n``, of two shares of the same questions.

    `gains` are questions right the first way only, `losses` the second way only, of all `n`.

    Notes
    -----
    Chosen over the question bootstrap because disagreement is rare where a policy is any good:
    with none observed a bootstrap gives the point 0, this gives about ±3.8 / n.

    References
    ----------
    Tango (1998), "Equivalence test and confidence interval for the difference in proportions for
    the paired-sample design", Statistics in Medicine 17.
    """
    if min(gains, losses) < 0 or gains + losses > n or n < 1:
        raise CalibrationError(
            f"a paired difference needs gains + losses <= n, got {gains!r} + {losses!r} of {n!r}"
        )
    z = float(scipy.stats.norm.ppf((1 + level) / 2))
    estimate = (gains - losses) / n

    def score(difference: float) -> float:
        # Likeliest share of losses, given the difference: root of 2n q² + b q + c = 0.
        b = (2 * n - gains + losses) * difference - gains - losses
        c = -losses * difference * (1 - difference)
        q = (math.sqrt(max(b * b - 8 * n * c, 0.0)) - b) / (4 * n)
        variance = 2 * q + difference * (1 - difference)
        # No spread at all: only without any disagreement, at a difference of exactly 0.
        return (estimate - difference) * math.sqrt(n / variance) if variance > 0 else 0.0

    low, high = -1.0, 1.0
    if score(-_EDGE) > z:
        low = float(scipy.optimize.brentq(lambda d: score(d) - z, -_EDGE, min(estimate, _EDGE)))
    if score(_EDGE) < -z:
        high = float(scipy.optimize.brentq(lambda d: score(d) + z, max(estimate, -_EDGE), _EDGE))
    return low, high
