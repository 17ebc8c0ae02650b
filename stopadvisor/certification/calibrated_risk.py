"""What a calibrated rule lost along its thresholds, on the questions that it was calibrated on.

Taken from a certification while it is at hand; opens nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stopadvisor.assessment.choice import Choice
from stopadvisor.assessment.sequences import ThresholdSequence
from stopadvisor.certification.certify import Certification
from stopadvisor.certification.certify_transfer import TransferCertification
from stopadvisor.ground.arrays import FloatArray
from stopadvisor.rules.losses import LOST, Loss
from stopadvisor.rules.scorer import Scorer
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
    traces: int = 1
    """Of each question that `losses` counts."""

    @property
    def risk(self) -> FloatArray:
        """What a reply counts on average, shape (n_thresholds,)."""
        return self.losses / (self.n * self.traces)

    @property
    def limit(self) -> float:
        """Share lost up to which the test passes; negative where none does.

        A drop has none, because what passes depends on how many are gained, nor have two traces.
        """
        if not self.loss.is_binary or self.traces > 1:
            return -1.0
        return max_losses(self.n, self.alpha, self.delta) / self.n

    def sequence_in(self, choice: Choice) -> ThresholdSequence | None:
        """The rule on fit questions that was calibrated; None where it was fitted elsewhere."""
        for sequence in choice.compared:
            same = sequence.scorer.family == self.scorer.family
            if same and np.array_equal(sequence.thresholds, self.order):
                return sequence
        return None

    def upper_limits(self) -> FloatArray | None:
        """Upper limit of each risk by itself, shape (n_thresholds,); None where `limit` is none."""
        if not self.loss.is_binary or self.traces > 1:
            return None
        return np.array([upper_limit(int(k), self.n, self.delta) for k in self.losses])


def calibrated_risk(found: Certification | TransferCertification) -> CalibratedRisk | None:
    """Risk of the exported rule along its thresholds, or of the first that was refused.

    None where no look was taken or it showed no figure, where a rule from another run was refused,
    and where one was refused on few labels.
    """
    calibration, settings = found.calibration, found.settings
    if found.look is None or not found.look.opened:
        return None
    if calibration.rule is not None:
        scorer, order = calibration.rule.scorer, calibration.rule.order
        exported: int | None = calibration.rule.certificate.index
        delta = calibration.rule.certificate.delta
    elif isinstance(found, Certification) and found.labels is None:
        first = found.assessment.choice.sequences[0]
        scorer, order, exported, delta = first.scorer, first.thresholds, None, settings.delta
    else:
        return None
    counted, alpha = settings.counted, settings.alpha
    entered = calibration.entered if counted.is_binary else calibration.first
    n = calibration.first.n_questions
    view = scorer.view(entered)
    losses = scorer.curve(view, order).totals(scorer.losses(view, counted))[0].round()
    traces = entered.n_questions // n
    return CalibratedRisk(scorer, order, losses, n, alpha, delta, exported, counted, traces)
