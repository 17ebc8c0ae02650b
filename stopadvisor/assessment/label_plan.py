"""How many labels a certificate takes, before anything is labelled.

Knows no data: what is wanted and which risk is expected come in as numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stopadvisor.assessment.limits import Shares, labels_for, pass_probability
from stopadvisor.errors import CalibrationError
from stopadvisor.rules.losses import DROP, LOST, Guarantee, LossName
from stopadvisor.stats.bounds import Bound, labels_needed, power

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
    bound: Bound
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
        if self.loss == DROP.name and self.bound != "exact":
            raise CalibrationError(
                f"--bound {self.bound} is for lost and differs; a drop has its exact test"
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
    """Sizes; None where no number of labels suffices."""

    calibration_labels: int | None
    """The smallest number such that it and every larger one reach the power."""
    total_labels: int | None
    """In all parts."""
    power_reached: float | None
    one_chain_calibration_labels: int | None
    """Where one rule is tested alone."""


def plan_labels(wish: CertificateWish) -> LabelPlan:
    """Find the sizes; power is a sawtooth in the number of questions."""
    needed = _needed(wish, wish.chain_delta)
    alone = _needed(wish, wish.delta)
    if needed is None:
        return LabelPlan(None, None, None, alone)
    return LabelPlan(
        needed,
        # 286 / 0.4 is 715, whatever binary makes of it.
        math.ceil(round(needed / wish.split[1], 6)),
        _reached(wish, needed),
        alone,
    )


def _reached(wish: CertificateWish, n: int) -> float:
    if wish.guarantee.counted.is_binary:
        return power(n, wish.alpha, wish.chain_delta, wish.expected_risk, wish.bound)
    return pass_probability(wish.guarantee, n, wish.chain_delta, wish.shares)


def _needed(wish: CertificateWish, delta: float) -> int | None:
    if not wish.guarantee.counted.is_binary:
        return labels_for(wish.guarantee, delta, wish.shares, power_wanted=wish.power)
    return labels_needed(
        wish.alpha,
        delta,
        expected_risk=wish.expected_risk,
        power_wanted=wish.power,
        bound=wish.bound,
    )
