"""What fresh questions say about a certificate: two limits, a verdict, and what it could have been.

Each limit is one-sided at delta, and exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import scipy

from stopadvisor.assessment.limits import Shares
from stopadvisor.stats.bounds import max_losses, power, upper_limit
from stopadvisor.stats.trinomial import drop_limit, drop_passes, drop_power, limit_of_pairs

__all__ = ["Evidence", "Verdict", "of_drop", "of_pairs", "of_questions", "verdict_on"]

Verdict = Literal["confirmed", "contradicted", "silent"]

_LIKELY = 0.8
"""Probability of a contradiction at the risk that is called detectable."""


@dataclass(frozen=True)
class Evidence:
    """Of fresh questions, about a risk of alpha."""

    verdict: Verdict
    lower: float
    upper: float
    power_to_confirm: float
    """Probability to confirm at the expected risk."""
    detectable_risk: float | None
    """Risk that would be contradicted four times in five; None: too few questions for any, or a
    drop."""


def of_questions(losses: int, n: int, alpha: float, delta: float, expected: float) -> Evidence:
    """What `losses` among `n` independent questions say."""
    return Evidence(
        verdict_on(losses, n, alpha, delta),
        _lower_limit(losses, n, delta),
        upper_limit(losses, n, delta),
        power(n, alpha, delta, expected),
        _detectable_risk(n, alpha, delta),
    )


def of_drop(
    lost: int, gained: int, n: int, alpha: float, delta: float, expected: Shares
) -> Evidence:
    """What so many lost and gained among `n` independent questions say about a drop.

    The lower limit is the upper one of the same questions with lost and gained changed over.
    """
    verdict: Verdict = "silent"
    if drop_passes(gained, lost, n, -alpha, delta):
        verdict = "contradicted"
    elif drop_passes(lost, gained, n, alpha, delta):
        verdict = "confirmed"
    return Evidence(
        verdict,
        -drop_limit(gained, lost, n, delta),
        drop_limit(lost, gained, n, delta),
        drop_power(n, alpha, delta, expected.lost, expected.gained),
        None,
    )


def of_pairs(
    both: int, none: int, n: int, alpha: float, delta: float, expected: Shares
) -> Evidence:
    """What `n` questions with two traces say, of which `both` replies count, and `none`."""
    found = of_drop(both, none, n, limit_of_pairs(alpha), delta, expected)
    return replace(found, lower=(found.lower + 1) / 2, upper=(found.upper + 1) / 2)


def verdict_on(losses: int, n: int, alpha: float, delta: float) -> Verdict:
    """What `losses` among `n` fresh questions say about a risk of alpha.

    Two exact one-sided tests; at a risk of exactly alpha, each is wrong with probability <= delta.
    """
    if _lower_limit(losses, n, delta) > alpha:
        return "contradicted"
    return "confirmed" if losses <= max_losses(n, alpha, delta) else "silent"


def _lower_limit(losses: int, n: int, delta: float) -> float:
    return float(scipy.stats.beta.ppf(delta, losses, n - losses + 1)) if losses else 0.0


def _detectable_risk(n: int, alpha: float, delta: float) -> float | None:
    """Risk at which a contradiction has a probability of four in five."""
    first = int(scipy.stats.binom.isf(delta, n, alpha)) + 1  # fewest losses that contradict
    return float(scipy.stats.beta.ppf(_LIKELY, first, n - first + 1)) if first <= n else None
