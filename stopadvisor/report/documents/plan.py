"""What `plan --json` prints: the labels that a certificate takes."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from stopadvisor.assessment.assess import FitAssessment
from stopadvisor.assessment.label_plan import CertificateWish, LabelPlan
from stopadvisor.report.documents.assess import LabelNeedFields, LabelSavingFields
from stopadvisor.report.documents.fields import Document, fill
from stopadvisor.rules.losses import DROP, LOST

__all__ = ["PlanDocument", "plan_document"]


class PlanDocument(Document):
    """`plan --json`."""

    alpha: Annotated[float, "The risk to certify."]
    loss: NotRequired[
        Annotated[Literal["differs", "drop"], "What it limits; without it lost answers."]
    ]
    expected_gain: NotRequired[
        Annotated[float, "Only of a drop: share of the questions that stopping makes right."]
    ]
    delta: Annotated[float, "1 minus the confidence."]
    bound: Annotated[str, "The test of the risk."]
    expected_risk: Annotated[
        float, "The risk that the most careful useful threshold is expected to have."
    ]
    power: Annotated[float, "The probability of success that is wanted."]
    chains: Annotated[int, "Rules that share delta."]
    chain_delta: Annotated[float, "Error probability of one rule's tests."]
    split: Annotated[list[float], "Shares of fit, calibration and test."]
    calibration_labels: Annotated[
        int | None, "Smallest number from which on it is reached; null where no number does."
    ]
    total_labels: Annotated[int | None, "Labels in all parts."]
    power_reached: Annotated[float | None, "Probability at that number."]
    one_chain_calibration_labels: Annotated[int | None, "Labels where one rule is tested alone."]
    label_savings: NotRequired[
        Annotated[
            list[LabelSavingFields],
            "Only with RUN: what its advised rule is expected to save by the number of labels.",
        ]
    ]
    label_needs: NotRequired[
        Annotated[
            list[LabelNeedFields],
            "Only with a RUN without gold: labels that a promise about lost answers would take.",
        ]
    ]


def plan_document(
    wish: CertificateWish, plan: LabelPlan, assessment: FitAssessment | None = None
) -> PlanDocument:
    """Build the document of what was wished and what it takes."""
    of_loss: dict[str, object] = {
        "loss": None if wish.loss == LOST.name else wish.loss,
        "expected_gain": wish.expected_gain if wish.loss == DROP.name else None,
    }
    if assessment is None:
        return fill(PlanDocument, of_loss, wish, plan)
    return fill(
        PlanDocument,
        of_loss,
        wish,
        plan,
        label_savings=assessment.label_savings,
        label_needs=assessment.label_needs or None,
    )
