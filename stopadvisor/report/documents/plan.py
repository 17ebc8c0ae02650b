"""What `plan --json` prints: the labels that a certificate takes."""

from __future__ import annotations

from typing import TypedDict

from stopadvisor.assessment.label_plan import CertificateWish, LabelPlan
from stopadvisor.report.documents.parts import SCHEMA

__all__ = ["PlanDocument", "plan_document"]


class PlanDocument(TypedDict):
    """`plan --json`."""

    schema: int
    """Now 1; raised when a program that reads this has to change."""
    alpha: float
    """The risk to certify."""
    delta: float
    """1 minus the confidence."""
    bound: str
    """The test of the risk."""
    expected_risk: float
    """The risk that the most careful useful threshold is expected to have."""
    power: float
    """The chance of success that is wanted."""
    chains: int
    """Rules that share delta."""
    chain_delta: float
    """Error probability of one rule's tests."""
    split: list[float]
    """Shares of fit, calibration and test."""
    calibration_labels: int | None
    """Smallest number from which on the chance is reached; null where no number does."""
    total_labels: int | None
    """Labels in all parts."""
    power_reached: float | None
    """Chance at that number."""
    one_chain_calibration_labels: int | None
    """Labels where one rule is tested alone."""


def plan_document(wish: CertificateWish, plan: LabelPlan) -> PlanDocument:
    """Build the document of what was wished and what it takes."""
    return {
        "schema": SCHEMA,
        "alpha": wish.alpha,
        "delta": wish.delta,
        "bound": wish.bound,
        "expected_risk": wish.expected_risk,
        "power": wish.power,
        "chains": wish.chains,
        "chain_delta": wish.chain_delta,
        "split": list(wish.split),
        "calibration_labels": plan.calibration_labels,
        "total_labels": plan.total_labels,
        "power_reached": plan.power_reached,
        "one_chain_calibration_labels": plan.one_chain_calibration_labels,
    }
