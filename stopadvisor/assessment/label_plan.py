"""How many labels a certificate takes, before anything is labelled.

Knows no data: what is wanted and which risk is expected come in as numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stopadvisor.assessment.fit_assessment import FitAssessment, LabelRow
from stopadvisor.assessment.label_need import LabelNeed
from stopadvisor.assessment.limits import Shares, labels_for, pass_probability
from stopadvisor.rules.losses import LOST, Guarantee, LossName

__all__ = ["LabelPlan", "plan_labels"]

_MOST_COMPARED = 5_000
"""Labels up to which two traces are compared; for more the search takes seconds."""


@dataclass(frozen=True)
class LabelPlan:
    """`plan --json`: the labels that a certificate takes."""

    alpha: float
    """The risk to certify."""
    delta: float
    """1 minus the confidence."""
    expected_risk: float
    """The risk that the most careful useful threshold is expected to have."""
    power: float
    """The probability of success that is wanted."""
    split: tuple[float, float, float]
    """Shares of fit, calibration and test."""
    calibration_labels: int | None
    """Smallest number from which on the power is reached; null where no number suffices."""
    total_labels: int | None
    """Labels in all parts."""
    power_reached: float | None
    """Probability at that number."""
    two_traces_calibration_labels: int | None = None
    """Questions that would do where each has two traces, and where of the first replies that are
    lost half are lost again with the second; missing for a drop, and where none or too many are
    needed."""
    loss: LossName | None = None
    """What alpha limits; without it lost answers."""
    label_savings: tuple[LabelRow, ...] | None = None
    """Only with RUN: what its advised rule is expected to save by the number of labels."""
    label_needs: tuple[LabelNeed, ...] | None = None
    """Only with a RUN without gold: labels that a promise about lost answers would take."""


def plan_labels(
    *,
    alpha: float,
    delta: float,
    expected_risk: float,
    power: float = 0.8,
    split: tuple[float, float, float],
    loss: LossName | None = None,
    assessment: FitAssessment | None = None,
) -> LabelPlan:
    """Find the sizes; power is a sawtooth in the number of questions.

    Parameters
    ----------
    expected_risk : float
        Of the most careful useful threshold.
    power : float
        Probability of success that is wanted.
    split : tuple of float
        Shares of fit, calibration and test.
    loss : str, optional
        What is limited; None for lost answers.
    assessment : FitAssessment, optional
        Of a run, whose advised rule says what more labels would buy.
    """
    wanted, shares = Guarantee(loss or LOST.name, alpha), Shares(expected_risk, 0.0)
    needed = labels_for(wanted, delta, shares, power_wanted=power)
    twice = None
    if wanted.counted.is_binary and needed is not None and needed <= _MOST_COMPARED:
        twice = labels_for(wanted, delta, shares, power_wanted=power, traces=2)
    return LabelPlan(
        alpha=alpha,
        delta=delta,
        expected_risk=expected_risk,
        power=power,
        split=split,
        calibration_labels=needed,
        # 286 / 0.4 is 715, whatever binary makes of it.
        total_labels=None if needed is None else math.ceil(round(needed / split[1], 6)),
        power_reached=None if needed is None else pass_probability(wanted, needed, delta, shares),
        two_traces_calibration_labels=twice,
        loss=None if loss == LOST.name else loss,
        label_savings=None if assessment is None else assessment.label_savings,
        label_needs=None if assessment is None else assessment.label_needs or None,
    )
