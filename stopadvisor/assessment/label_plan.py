"""How many labels a certificate takes, before anything is labelled.

Knows no data: what is wanted and which risk is expected come in as numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stopadvisor.assessment.assess import FitAssessment, LabelRow
from stopadvisor.assessment.label_need import LabelNeed
from stopadvisor.assessment.limits import Shares, labels_for, pass_probability
from stopadvisor.errors import CalibrationError
from stopadvisor.rules.losses import DROP, LOST, Guarantee, LossName
from stopadvisor.stats.bounds import labels_needed, power

__all__ = ["CertificateWish", "LabelPlan", "plan_labels"]


@dataclass(frozen=True)
class CertificateWish:
    """What certificate is wanted, and what risk is expected."""

    alpha: float
    delta: float
    expected_risk: float
    """Of the most careful useful threshold."""
    power: float
    """Probability of success that is wanted."""
    chains: int
    """Sequences of tests that share delta: learned and scalar."""
    split: tuple[float, float, float]
    """Shares of fit, calibration and test."""
    loss: LossName | None = None
    """What is limited; None for lost answers."""
    expected_gain: float = 0.0
    """Of a drop: share of the questions that the threshold is expected to make right."""

    def __post_init__(self) -> None:
        if self.expected_gain and self.loss != DROP.name:
            raise CalibrationError(
                f"an expected gain of {self.expected_gain:g} counts in a drop of accuracy alone: "
                "say --loss drop"
            )

    @property
    def guarantee(self) -> Guarantee:
        """What is to be certified."""
        return Guarantee(self.loss or LOST.name, self.alpha)

    @property
    def shares(self) -> Shares:
        """What is expected of a threshold."""
        return Shares(self.expected_risk, self.expected_gain)

    @property
    def chain_delta(self) -> float:
        """Error probability of one sequence."""
        return self.delta / self.chains


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
    chains: int
    """Rules that share delta."""
    chain_delta: float
    """Error probability of one rule's tests."""
    split: tuple[float, float, float]
    """Shares of fit, calibration and test."""
    calibration_labels: int | None
    """Smallest number from which on the power is reached; null where no number suffices."""
    total_labels: int | None
    """Labels in all parts."""
    power_reached: float | None
    """Probability at that number."""
    one_chain_calibration_labels: int | None
    """Labels where one rule is tested alone."""
    loss: LossName | None = None
    """What alpha limits; without it lost answers."""
    expected_gain: float | None = None
    """Only of a drop: share of the questions that stopping makes right."""
    label_savings: tuple[LabelRow, ...] | None = None
    """Only with RUN: what its advised rule is expected to save by the number of labels."""
    label_needs: tuple[LabelNeed, ...] | None = None
    """Only with a RUN without gold: labels that a promise about lost answers would take."""


def plan_labels(wish: CertificateWish, assessment: FitAssessment | None = None) -> LabelPlan:
    """Find the sizes; power is a sawtooth in the number of questions.

    Parameters
    ----------
    assessment : FitAssessment, optional
        Of a run, whose advised rule says what more labels would buy.
    """
    needed = _needed(wish, wish.chain_delta)
    return LabelPlan(
        alpha=wish.alpha,
        delta=wish.delta,
        expected_risk=wish.expected_risk,
        power=wish.power,
        chains=wish.chains,
        chain_delta=wish.chain_delta,
        split=wish.split,
        calibration_labels=needed,
        # 286 / 0.4 is 715, whatever binary makes of it.
        total_labels=None if needed is None else math.ceil(round(needed / wish.split[1], 6)),
        power_reached=None if needed is None else _reached(wish, needed),
        one_chain_calibration_labels=_needed(wish, wish.delta),
        loss=None if wish.loss == LOST.name else wish.loss,
        expected_gain=wish.expected_gain if wish.loss == DROP.name else None,
        label_savings=None if assessment is None else assessment.label_savings,
        label_needs=None if assessment is None else assessment.label_needs or None,
    )


def _reached(wish: CertificateWish, n: int) -> float:
    if wish.guarantee.counted.is_binary:
        return power(n, wish.alpha, wish.chain_delta, wish.expected_risk)
    return pass_probability(wish.guarantee, n, wish.chain_delta, wish.shares)


def _needed(wish: CertificateWish, delta: float) -> int | None:
    if not wish.guarantee.counted.is_binary:
        return labels_for(wish.guarantee, delta, wish.shares, power_wanted=wish.power)
    return labels_needed(
        wish.alpha, delta, expected_risk=wish.expected_risk, power_wanted=wish.power
    )
