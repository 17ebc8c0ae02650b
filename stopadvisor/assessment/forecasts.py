"""What a calibration is expected to show: limits in fit questions, probabilities, labels, savings.

Savings are found by imitating many calibrations on fit questions: as many questions as there will
be are drawn with replacement, the test walks along the sequence, and what it certifies has a cost
on fit, averaged over draws.  Sequences are compared by the mean over several limits of losses: at
that limit alone three or four unlucky questions would decide.  Knows fit questions and how many
calibration questions there are; chooses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stopadvisor.assessment.limits import (
    FitLimits,
    Shares,
    allowed,
    expected_most,
    labels_for,
    pass_probability,
)
from stopadvisor.assessment.sequences import FitData, ThresholdSequence
from stopadvisor.assessment.settings import Settings
from stopadvisor.ground.arrays import FloatArray

__all__ = [
    "Imitation", "RatedRule", "certification_probability", "counted_labels",
    "first_useful_risk", "fit_limit", "risk_to_expect", "useful_shares",
]  # fmt: skip

_DRAWS = 200
_LIMITS = (2 / 3, 1.0, 4 / 3, 3 / 2, 2.0, 5 / 2)
"""Times the losses that the test allows."""
_FEW_LOSSES = 16
"""Up to this many allowed losses a few unlucky questions decide; beyond, limits lie closer
together, as larger counts deviate less."""


def fit_limit(n_calibration: int, settings: Settings, counted: Sequence[int] = ()) -> FitLimits:
    """Most fit losses that correspond to what calibration could still certify.

    `counted` are the calibration questions that each guarantee is of; by default all of them.
    """
    sizes = tuple(counted) or (n_calibration,) * len(settings.guarantees)
    pairs = zip(settings.guarantees, sizes, strict=True)
    most = (expected_most(each, n, settings) for each, n in pairs)
    return FitLimits(tuple(most), tuple(map(float, sizes)))


def certification_probability(
    fit: FitData,
    sequence: ThresholdSequence,
    n_calibration: int,
    settings: Settings,
    counted: Sequence[int] = (),
) -> float:
    """Probability that calibration certifies some saving by a sequence, at its fit risk."""
    expected = useful_shares(fit, sequence)
    if expected is None:
        return 0.0
    sizes = tuple(counted) or (n_calibration,) * len(settings.guarantees)
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


def useful_shares(fit: FitData, sequence: ThresholdSequence) -> tuple[Shares, ...] | None:
    """Fit shares of each guarantee at the most careful threshold that saves anything, if any."""
    risk = first_useful_risk(fit, sequence)
    if risk is None:
        return None
    index = int(np.flatnonzero(sequence.costs < fit.full_cost.sum())[0])
    return tuple(part.shares(index) for part in sequence.counts)


def counted_labels(
    settings: Settings,
    delta: float,
    expected: float | Sequence[Shares],
    *,
    power_wanted: float = 0.8,
) -> int | None:
    """Questions that the bound must count to pass four times in five; None for no number.

    `expected` is the share lost, or what of each loss is.
    """
    if isinstance(expected, float):
        expected = (Shares(expected),) * len(settings.guarantees)
    needed = [
        labels_for(each, delta, share, power_wanted=power_wanted, traces=settings.traces)
        for each, share in zip(settings.guarantees, expected, strict=True)
    ]
    known = [n for n in needed if n is not None]
    return max(known) if len(known) == len(needed) else None


# --- Imitated calibrations ------------------------------------------------------------------------


@dataclass(frozen=True)
class RatedRule:
    """A rule with what it saves over imitated calibrations, in percent."""

    sequence: ThresholdSequence
    rating_pct: float
    """To choose among rules by: averaged over several limits of losses, most of them above the one
    that is allowed."""
    saving_pct: float
    """At the limit that is allowed: expected to be certified."""

    @property
    def family(self) -> str:
        """The family of the rule."""
        return self.sequence.scorer.family


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

    def rate(self, sequence: ThresholdSequence) -> RatedRule:
        """Rate a sequence, both ways at the price of one."""
        costs = self._mean_costs(sequence, _LIMITS)
        allowed = costs[_LIMITS.index(1.0)]
        return RatedRule(sequence, self._saved_pct(costs), self._saved_pct([allowed]))

    def saving_pct(self, sequence: ThresholdSequence) -> float:
        """Percent that a calibration is expected to save by this sequence."""
        return self._saved_pct(self._mean_costs(sequence, (1.0,)))

    def _saved_pct(self, costs: Sequence[float]) -> float:
        return float(100 * (1 - np.mean(costs) / self.full_cost))

    def _mean_costs(self, sequence: ThresholdSequence, limits: Sequence[float]) -> list[float]:
        """Mean cost over the draws, at each limit of losses."""
        # A certified rule that costs more than full thinking is not exported.
        costs = np.append(np.minimum(sequence.costs, self.full_cost), self.full_cost)
        tested = []
        for guarantee, part in zip(self.settings.guarantees, sequence.counts, strict=True):
            _, lost, gained = part.in_draws(self.draws)  # (n_draws, n_steps)
            sizes, which = np.unique(part.counted(self.draws).round(), return_inverse=True)
            tables = [expected_most(guarantee, int(n), self.settings) for n in sizes]
            if part.gained is None:
                most = np.array([float(table[0]) for table in tables])[which][:, None]
            else:
                pairs = zip(which, gained, strict=True)
                most = np.stack([allowed(tables[k], row) for k, row in pairs])
            tested.append((part, lost, most))
        found = []
        for factor in limits:
            last = []
            for part, lost, most in tested:
                away = (factor - 1) * np.sqrt(np.maximum(most, 0) * np.clip(most, 0, _FEW_LOSSES))
                limit = np.where(most < 0, -1.0, np.round(most + away) + 0.5 + 1e-6)
                last.append(part.last(lost > limit))
            found.append(float(costs[np.min(last, axis=0)].mean()))
        return found
