"""What a calibration is expected to certify, found by imitating many of them on fit questions.

As many questions as there will be are drawn from fit with replacement, the test walks along the
sequence, and what it certifies has a cost on fit, averaged over draws.  Sequences are compared by
the mean over several limits of losses: at that limit alone three or four unlucky
questions would decide.  Sees no calibration question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stopadvisor.assessment.limits import allowed, expected_most
from stopadvisor.assessment.requirements import Settings
from stopadvisor.assessment.sequences import FitData, ThresholdSequence
from stopadvisor.ground.arrays import FloatArray, IntArray

__all__ = ["ExpectedSaving", "Imitation"]

_DRAWS = 200
_LIMITS = (2 / 3, 1.0, 4 / 3, 3 / 2, 2.0, 5 / 2)
"""Times the losses that the test allows."""
_FEW_LOSSES = 16
"""Up to this many allowed losses a few unlucky questions decide; beyond, limits lie closer
together, as larger counts deviate less."""


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

    settings: Settings
    n_calibration: int
    """Questions that each of them counts."""
    draws: FloatArray  # (n_draws, n_blocks)
    """How often each block of fit questions is drawn, over its size."""
    full_cost: float
    """Of all fit questions together."""

    @classmethod
    def draw(
        cls, fit: FitData, n_calibration: int, settings: Settings, *, n_draws: int = _DRAWS
    ) -> Imitation:
        """Draw calibrations of N questions each; the same for the same fit questions."""
        rng = np.random.default_rng(fit.table.n_questions)
        shares = np.full(fit.n_blocks, 1 / fit.n_blocks)
        # Of a block one question at a time is drawn, any of them.
        draws = rng.multinomial(n_calibration, shares, n_draws) / fit.block_sizes
        full_cost = float(fit.full_cost.sum())
        return cls(settings, n_calibration, draws.astype(np.float32), full_cost)

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
        first, tested = self._tested(sequence)
        # A certified rule that costs more than full thinking is not exported.
        costs = np.append(np.minimum(sequence.costs, self.full_cost), self.full_cost)
        found = []
        for factor in limits:
            over = np.zeros((len(self.draws), first.size), dtype=bool)
            for losses, most in tested:
                away = (factor - 1) * np.sqrt(np.maximum(most, 0) * np.clip(most, 0, _FEW_LOSSES))
                most_now = np.round(most + away) + 0.5
                over |= losses > np.where(most < 0, -1.0, most_now + 1e-6)
            last = np.where(over.any(axis=1), first[over.argmax(axis=1)], n_thresholds) - 1
            found.append(float(costs[last].mean()))
        return found

    def _tested(
        self, sequence: ThresholdSequence
    ) -> tuple[IntArray, list[tuple[FloatArray, FloatArray]]]:
        """Thresholds that are looked at, (n_steps,); and of each guarantee what counts there.

        That is the losses in each draw, (n_draws, n_steps), and the most that pass.
        """
        if not sequence.counts:
            first, losses = sequence.losses_in(self.draws)
            limited = self.settings.guarantees[0]
            most = expected_most(limited, self.n_calibration, self.settings)[0]
            return first, [(losses, np.full((len(losses), 1), float(most)))]
        found = []
        for guarantee, part in zip(self.settings.guarantees, sequence.counts, strict=True):
            counted = (self.draws @ part.sizes).round()
            sizes, which = np.unique(counted, return_inverse=True)
            tables = [expected_most(guarantee, int(n), self.settings) for n in sizes]
            lost = self.draws @ part.lost
            gained = np.zeros((len(lost), 1)) if part.gained is None else self.draws @ part.gained
            limits = [allowed(tables[k], row) for k, row in zip(which, gained, strict=True)]
            found.append((lost, np.stack(limits)))
        return np.arange(sequence.thresholds.size), found
