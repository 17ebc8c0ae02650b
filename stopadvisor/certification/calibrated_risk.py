"""What a calibrated rule lost along its thresholds, on the questions that it was calibrated on.

Takes a calibration's document, and opens only questions that its look has opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stopadvisor.arrays import FloatArray
from stopadvisor.assessment.choice import Choice
from stopadvisor.assessment.sequences import ThresholdSequence
from stopadvisor.certification.labelling import first_asked, graded_by_labels
from stopadvisor.certification.looks import questions_of
from stopadvisor.certification.verification import scorer_of
from stopadvisor.errors import PolicyError
from stopadvisor.probes.grouping import calibration_rows
from stopadvisor.probes.outcomes import CalibrationQuestions
from stopadvisor.rules.losses import LOST, Loss, loss_of
from stopadvisor.rules.scorer import Scorer
from stopadvisor.runs.sources import Source
from stopadvisor.stats.bounds import max_losses, upper_limit

__all__ = ["CalibratedRisk", "calibrated_risk"]


@dataclass(frozen=True)
class CalibratedRisk:
    """Losses of a calibrated rule on its calibration questions."""

    scorer: Scorer
    order: FloatArray  # (n_thresholds,) linear scale, as tested
    losses: FloatArray  # (n_thresholds,)
    n: int
    alpha: float
    delta: float
    """Of this sequence."""
    exported: int | None
    """Index of the exported threshold; None where nothing was certified."""
    loss: Loss = LOST

    @property
    def risk(self) -> FloatArray:
        """What a question counts on average, shape (n_thresholds,)."""
        return self.losses / self.n

    @property
    def limit(self) -> float:
        """Share lost up to which the test passes; negative where none does.

        A drop has none, because what passes depends on how many are gained.
        """
        if not self.loss.is_binary:
            return -1.0
        return max_losses(self.n, self.alpha, self.delta) / self.n

    def sequence_in(self, choice: Choice) -> ThresholdSequence | None:
        """The rule on fit questions that was calibrated; None where it was fitted elsewhere."""
        for sequence in choice.compared:
            same = sequence.scorer.family == self.scorer.family
            if same and np.array_equal(sequence.thresholds, self.order):
                return sequence
        return None

    def risk_on_fit(self, choice: Choice) -> FloatArray | None:
        """What a fit question counts, out of fold; None where the rule was fitted elsewhere."""
        same = self.sequence_in(choice)
        return None if same is None else same.losses / choice.n_fit

    def upper_limits(self) -> FloatArray | None:
        """Upper limit of each risk by itself, shape (n_thresholds,); None for a drop."""
        if not self.loss.is_binary:
            return None
        return np.array([upper_limit(int(k), self.n, self.delta) for k in self.losses])


def calibrated_risk(
    source: Source, choice: Choice, document: Mapping[str, Any], policy: Mapping[str, Any]
) -> CalibratedRisk | None:
    """Risk of the calibrated rule along its thresholds.

    `document` is a ``calibration.json``, and `policy` the content of the policy that it names,
    empty where nothing was certified: then the first sequence of the family tested stands in.  None
    where the look showed no figure, or none was taken, or the refused rule is not among those
    chosen here.

    Raises
    ------
    PolicyError
        The labels are not those of the calibration.
    ProbeError
        The log holds no such look.
    """
    certificate, look = document["certificate"], document["look"]
    if look is None or not look.get("opened", True):
        return None
    questions = questions_of(source, document)
    if questions is None:
        return None
    risk = _risk_on(source, questions, choice, document, policy)
    if risk is None or risk.exported is None:
        return risk
    lost = int(risk.losses[risk.exported])
    if (lost, risk.n) != (certificate["losses"] - certificate.get("gained", 0), certificate["n"]):
        raise PolicyError("the labels have changed since calibration")
    return risk


def _risk_on(
    source: Source,
    table: CalibrationQuestions,
    choice: Choice,
    document: Mapping[str, Any],
    policy: Mapping[str, Any],
) -> CalibratedRisk | None:
    certificate = document["certificate"]
    table = table.take(calibration_rows(table))
    if certificate is not None:
        scorer = scorer_of(policy, table, along_order=True)
        order = np.array(policy["order"])
        exported = int(np.flatnonzero(order == policy["decision_threshold"])[0])
        delta = certificate["chain_delta"]
    else:
        tested = document["tested"][0]["family"]
        sequences = [c for c in choice.sequences if c.scorer.family == tested]
        if not sequences:
            return None
        scorer, order, exported = sequences[0].scorer, sequences[0].thresholds, None
        # Looks that were planned share their delta.
        delta = document["delta"] / (document["look"]["planned"] or 1)
    counted = loss_of(document if certificate is None else certificate)
    if counted.needs_gold and table.graded_by == "agreement":
        table, _ = graded_by_labels(source, table)
        if certificate is not None:
            table = first_asked(source, table, certificate["n"])
    view = scorer.view(table)
    curve, lost = scorer.curve(view, order), scorer.losses(view, counted)
    losses, alpha = curve.totals(lost)[0].round(), document["alpha"]
    return CalibratedRisk(scorer, order, losses, table.n_questions, alpha, delta, exported, counted)
