"""What calibration can be expected to show: limits in fit questions, probabilities, and labels.

Knows fit questions and how many calibration questions there are; chooses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stopadvisor.assessment.limits import (
    FitLimits,
    Shares,
    expected_most,
    labels_for,
    pass_probability,
)
from stopadvisor.assessment.requirements import Settings
from stopadvisor.assessment.sequences import FitData, ThresholdSequence

__all__ = [
    "certification_probability",
    "counted_labels",
    "first_useful_risk",
    "fit_limit",
    "risk_to_expect",
    "useful_shares",
]


def fit_limit(
    n_fit: int, n_calibration: int, settings: Settings, counted: Sequence[int] = ()
) -> float | FitLimits:
    """Most fit losses that correspond to what calibration could still certify; < 0 if nothing.

    Parameters
    ----------
    counted : sequence of int
        Calibration questions that each guarantee is of; of all of them by default.
    """
    if not settings.is_plain:
        sizes = tuple(counted) or (n_calibration,) * len(settings.guarantees)
        most = (
            expected_most(each, n, settings)
            for each, n in zip(settings.guarantees, sizes, strict=True)
        )
        return FitLimits(tuple(most), tuple(map(float, sizes)))
    allowed = int(expected_most(settings.guarantees[0], n_calibration, settings)[0])
    return -1.0 if allowed < 0 else allowed / n_calibration * n_fit


def certification_probability(
    fit: FitData,
    sequence: ThresholdSequence,
    n_calibration: int,
    settings: Settings,
    counted: Sequence[int] = (),
) -> float:
    """Probability that calibration certifies some saving by a sequence, at its fit risk."""
    risk = first_useful_risk(fit, sequence)
    if risk is None:
        return 0.0
    sizes = tuple(counted) or (n_calibration,) * len(settings.guarantees)
    expected = useful_shares(fit, sequence) or (Shares(risk),)
    return min(
        pass_probability(each, n, settings.delta, shares, settings.traces)
        for each, n, shares in zip(settings.guarantees, sizes, expected, strict=True)
    )


def first_useful_risk(fit: FitData, sequence: ThresholdSequence) -> float | None:
    """Fit risk at the most careful threshold that saves anything; 0 where more is gained."""
    useful = np.flatnonzero(sequence.costs < fit.full_cost.sum())
    if not useful.size:
        return None
    return max(float(sequence.losses[useful[0]]), 0.0) / fit.table.n_questions


def risk_to_expect(fit: FitData, tested: Sequence[ThresholdSequence]) -> float:
    """Smallest fit risk of the rules that calibration tests, by which labels are counted.

    0 where none of them saves anything, so that the fewest labels come out.
    """
    risks = [first_useful_risk(fit, each) for each in tested]
    return min(min((risk for risk in risks if risk is not None), default=0.0), 0.999)


def useful_shares(fit: FitData, sequence: ThresholdSequence) -> tuple[Shares, ...]:
    """Fit shares of each guarantee at the most careful threshold that saves anything."""
    useful = np.flatnonzero(sequence.costs < fit.full_cost.sum())
    index = int(useful[0]) if useful.size else 0
    return tuple(part.shares(index) for part in sequence.counts)


def counted_labels(
    settings: Settings, delta: float, expected_risk: float, shares: Sequence[Shares] = ()
) -> int | None:
    """Questions that the bound must count to pass four times in five; None for no number."""
    if not (shares and expected_risk):
        shares = (Shares(expected_risk),) * len(settings.guarantees)
    needed = [
        labels_for(each, delta, share, traces=settings.traces)
        for each, share in zip(settings.guarantees, shares, strict=True)
    ]
    known = [n for n in needed if n is not None]
    return max(known) if len(known) == len(needed) else None
