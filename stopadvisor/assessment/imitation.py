"""What a calibration is expected to certify, found by imitating many of them on fit questions.

As many questions as there will be are drawn from fit with replacement, the test walks along the
sequence, and what it certifies has a cost on fit, averaged over draws.  Sequences are compared by
the mean over several limits of losses: at the right limit alone the comparison hangs on three or
four unlucky questions.  Sees no calibration question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stopadvisor.arrays import FloatArray
from stopadvisor.assessment.sequences import FitData, ThresholdSequence
from stopadvisor.stats.bounds import Bound, Multiplicity, max_losses

__all__ = ["ExpectedSaving", "Imitation", "SequenceTest"]

_DRAWS = 200
_LIMITS = (2 / 3, 1.0, 4 / 3, 3 / 2, 2.0, 5 / 2)
"""Times the losses that the test allows."""
_FEW_LOSSES = 16
"""Up to so many allowed losses, a few unlucky questions decide; beyond, limits lie closer together,
as the deviation of a count does beside the count."""


@dataclass(frozen=True)
class SequenceTest:
    """How a sequence will be tested."""

    alpha: float
    delta: float
    bound: Bound
    multiplicity: Multiplicity
    conditional: bool
    """Only questions that full thinking gets right are counted."""


@dataclass(frozen=True)
class ExpectedSaving:
    """What a sequence saves over imitated calibrations, in percent."""

    rating_pct: float
    """To choose among sequences by: averaged over several limits of losses, most of them above the
    one that is allowed."""
    saving_pct: float
    """At the limit that is allowed."""


@dataclass(frozen=True)
class Imitation:
    """The same imitated calibrations for every sequence."""

    test: SequenceTest
    draws: FloatArray  # (n_draws, n_blocks)
    """How often each block of fit questions is drawn, over its size."""
    counted: FloatArray  # (n_draws,)
    """Questions that the bound counts."""
    full_cost: float
    """Of all fit questions together."""

    @classmethod
    def draw(
        cls, fit: FitData, n_calibration: int, test: SequenceTest, *, n_draws: int = _DRAWS
    ) -> Imitation:
        """Draw calibrations of so many questions each; the same for the same fit questions."""
        rng = np.random.default_rng(fit.table.n_questions)
        shares = np.full(fit.n_blocks, 1 / fit.n_blocks)
        # Of a block one question at a time is drawn, any of them.
        draws = rng.multinomial(n_calibration, shares, n_draws) / fit.block_sizes
        counted = np.full(n_draws, float(n_calibration))
        if test.conditional:
            right = np.bincount(fit.blocks, fit.table.full_correct, fit.n_blocks)
            counted = (draws @ right).round()
        return cls(test, draws.astype(np.float32), counted, float(fit.full_cost.sum()))

    def expected(self, sequence: ThresholdSequence) -> ExpectedSaving:
        """What a sequence saves, both ways at the price of one."""
        costs = self._mean_costs(sequence, _LIMITS)
        return ExpectedSaving(self._saved_pct(costs), self._saved_pct([costs[_LIMITS.index(1.0)]]))

    def saving_pct(self, sequence: ThresholdSequence) -> float:
        """Percent that a calibration is expected to save by this sequence."""
        return self._saved_pct(self._mean_costs(sequence, (1.0,)))

    def _saved_pct(self, costs: Sequence[float]) -> float:
        return float(100 * (1 - np.mean(costs) / self.full_cost))

    def _mean_costs(self, sequence: ThresholdSequence, limits: Sequence[float]) -> list[float]:
        """Mean cost over the draws, at each limit of losses."""
        n_thresholds = sequence.thresholds.size
        share = n_thresholds if self.test.multiplicity == "finite-grid" else 1
        sizes, which = np.unique(self.counted, return_inverse=True)
        test = self.test
        most = np.array(
            [max_losses(int(n), test.alpha, test.delta / share, test.bound) for n in sizes]
        )[which]
        losses = self.draws @ sequence.block_losses.astype(np.float32)  # (n_draws, n_thresholds)
        # A certified rule that costs more than full thinking is not exported.
        costs = np.append(np.minimum(sequence.costs, self.full_cost), self.full_cost)
        found = []
        for factor in limits:
            away = (factor - 1) * np.sqrt(np.maximum(most, 0) * np.clip(most, 0, _FEW_LOSSES))
            limit = np.where(most < 0, -1.0, np.round(most + away) + 0.5)[:, None]
            if test.multiplicity == "fixed-sequence":
                over = losses > limit
                last = np.where(over.any(axis=1), over.argmax(axis=1), n_thresholds) - 1
            else:
                within = (losses <= limit)[:, ::-1]
                last = np.where(within.any(axis=1), n_thresholds - 1 - within.argmax(axis=1), -1)
            found.append(float(costs[last].mean()))
        return found
