"""Verdicts of fresh questions on a certificate, with two exact one-sided limits at delta each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import scipy

from stopadvisor.assessment.limits import counted_rows
from stopadvisor.ground.arrays import IntArray
from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.claims import CertificateTerms, GuaranteeTerms
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.rules.losses import LOSSES, Guarantee, Loss
from stopadvisor.stats.bounds import max_losses, power, upper_limit
from stopadvisor.stats.trinomial import drop_limit, drop_passes, drop_power, limit_of_pairs

__all__ = ["LimitVerdict", "Verdict", "limit_verdicts", "of_questions", "of_values", "verdict_on"]

Verdict = Literal["confirmed", "contradicted", "silent"]

_LIKELY = 0.8
"""Power of a contradiction at the detectable risk."""


@dataclass(frozen=True)
class Evidence:
    """What fresh questions show about the claim that the risk is at most alpha."""

    verdict: Verdict
    lower: float
    upper: float
    power_to_confirm: float
    """Probability of a confirmation at the expected risk."""
    detectable_risk: float | None
    """Risk that would be contradicted four times in five; None for a drop, for two traces, or if
    there are too few questions for any."""


def of_questions(losses: int, n: int, alpha: float, delta: float, expected: float) -> Evidence:
    """Evidence from `losses` among `n` independent questions."""
    first = int(scipy.stats.binom.isf(delta, n, alpha)) + 1  # fewest losses that contradict
    return Evidence(
        verdict_on(losses, n, alpha, delta),
        _lower_limit(losses, n, delta),
        upper_limit(losses, n, delta),
        power(n, alpha, delta, expected),
        float(scipy.stats.beta.ppf(_LIKELY, first, n - first + 1)) if first <= n else None,
    )


def _of_drop(
    lost: int, gained: int, n: int, alpha: float, delta: float, expected: tuple[float, float]
) -> Evidence:
    """Evidence about a drop, from the lost and gained among `n` independent questions.

    The lower limit is minus the upper limit with lost and gained swapped.
    """
    verdict: Verdict = "silent"
    if drop_passes(gained, lost, n, -alpha, delta):
        verdict = "contradicted"
    elif drop_passes(lost, gained, n, alpha, delta):
        verdict = "confirmed"
    lower, upper = -drop_limit(gained, lost, n, delta), drop_limit(lost, gained, n, delta)
    return Evidence(verdict, lower, upper, drop_power(n, alpha, delta, *expected), None)


def verdict_on(losses: int, n: int, alpha: float, delta: float) -> Verdict:
    """Apply two exact one-sided tests, each at level delta.

    A risk of alpha or less is contradicted, and one of alpha or more confirmed, with probability at
    most delta.
    """
    if _lower_limit(losses, n, delta) > alpha:
        return "contradicted"
    return "confirmed" if losses <= max_losses(n, alpha, delta) else "silent"


def _lower_limit(losses: int, n: int, delta: float) -> float:
    return float(scipy.stats.beta.ppf(delta, losses, n - losses + 1)) if losses else 0.0


@dataclass(frozen=True)
class LimitVerdict:
    """Verdict of fresh questions on one of several limits."""

    loss: str
    """The limited loss: `lost`, `differs` or `drop`."""
    alpha: float
    """The limit."""
    category: str | None
    """The category it covers; null for all questions."""
    n: int
    """Fresh questions counted."""
    lost: int
    """Questions that count 1; replies, if each question has two traces."""
    gained: int
    """Questions that count -1; only for a drop."""
    lower: float
    """One-sided lower confidence limit, at delta."""
    upper: float
    """One-sided upper confidence limit, at delta."""
    verdict: Verdict
    """`confirmed` (at delta), `contradicted` (at its share of delta) or `silent`."""


def of_values(
    loss: Loss, values: IntArray, delta: float, limit: GuaranteeTerms, expected: float
) -> Evidence:
    """Evidence about one limit of a certificate.

    `values`, (n_traces, n_questions), holds the loss of each reply; `expected` is the risk that
    calibration measured.
    """
    n, alpha = values.shape[1], limit.alpha
    if len(values) == 2:
        # Calibrated on one trace, it is unknown how often both are lost: assume always, the worst.
        shares = expected, 1 - expected
        if limit.both is not None and limit.none is not None:
            shares = limit.both / limit.n, limit.none / limit.n
        both, none = int((values > 0).all(axis=0).sum()), int((values <= 0).all(axis=0).sum())
        found = _of_drop(both, none, n, limit_of_pairs(alpha), delta, shares)
        return replace(found, lower=(found.lower + 1) / 2, upper=(found.upper + 1) / 2)
    lost, gained = int((values > 0).sum()), int((values < 0).sum())
    if loss.is_binary:
        return of_questions(lost, n, alpha, delta, expected)
    return _of_drop(lost, gained, n, alpha, delta, (limit.lost / limit.n, limit.gained / limit.n))


def limit_verdicts(
    certificate: CertificateTerms,
    probed: GradedTable,
    stops: IntArray,
    delta: float,
    traces: int = 1,
) -> tuple[LimitVerdict, ...]:
    """Verdict on each of several limits; `probed` holds all first traces, then all second ones."""
    several = certificate.guarantees or ()
    found = []
    for each in several:
        loss = LOSSES[each.loss]
        rows = counted_rows(probed, Guarantee(loss.name, each.alpha, each.category))
        rows = rows[rows < probed.n_questions // traces]  # each has its first category
        if traces == 2 and loss.is_binary:
            rows = np.concatenate([rows, rows + probed.n_questions // 2])
        values = loss.of(probed)[rows, stops[rows]]
        values = values.reshape(traces if loss.is_binary else 1, -1)
        if not rows.size:
            raise PolicyError(
                f"the certificate limits category {each.category!r}, and no fresh question is in it"
            )
        alone, shared = (
            of_values(loss, values, level, each, each.risk)
            for level in (delta, delta / len(several))
        )
        verdict: Verdict = "confirmed" if alone.verdict == "confirmed" else "silent"
        found.append(
            LimitVerdict(
                loss.name,
                each.alpha,
                each.category,
                values.shape[1],
                int((values > 0).sum()),
                int((values < 0).sum()),
                alone.lower,
                alone.upper,
                "contradicted" if shared.verdict == "contradicted" else verdict,
            )
        )
    return tuple(found)
