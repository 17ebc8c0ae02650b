"""One sequence, chosen on fit questions; all of delta is spent on it.

A calibration is imitated: as many questions as there will be are drawn from fit with replacement,
the exact test walks along the sequence, and what it certifies has a cost on fit.  This is averaged
over draws, and over several limits of losses: at the right limit alone, it hangs on three or four
unlucky questions.  Knows nothing of calibration questions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stopadvisor.arrays import FloatArray
from tests.benchmarks.candidate.sequences import ThresholdSequence
from tests.benchmarks.real_rivals import most_losses

__all__ = ["Choice", "choose"]

_DRAWS = 200
_LIMITS = (2 / 3, 1.0, 4 / 3, 3 / 2, 2.0, 5 / 2)
"""Times the losses that the exact test allows."""
_SIMPLER_WITHIN = 1.0
"""Points of saving; less is no reason for a more complicated rule."""


@dataclass(frozen=True)
class Choice:
    """What was chosen."""

    sequence: ThresholdSequence
    savings: dict[str, float]
    """Percent that each sequence is expected to save, by its name."""


def choose(
    sequences: list[ThresholdSequence],
    full_cost: FloatArray,
    n_calibration: int,
    alpha: float,
    delta: float,
) -> Choice:
    """The cheapest, unless a simpler one is within a point.

    Parameters
    ----------
    sequences : list of ThresholdSequence
        At least one.
    full_cost : ndarray of float, shape (n_fit,)
        Tokens of full thinking.
    """
    savings = {
        sequence.name: _expected_saving(sequence, full_cost, n_calibration, alpha, delta)
        for sequence in sequences
    }
    enough = max(savings.values()) - _SIMPLER_WITHIN
    near = [sequence for sequence in sequences if savings[sequence.name] >= enough]
    chosen = min(near, key=lambda sequence: (sequence.rank, -savings[sequence.name]))
    return Choice(chosen, savings)


def _expected_saving(
    sequence: ThresholdSequence,
    full_cost: FloatArray,
    n_calibration: int,
    alpha: float,
    delta: float,
) -> float:
    """Percent that a calibration is expected to save; 0 where it is too small for any."""
    n_fit = len(full_cost)
    most = most_losses(n_calibration, alpha, delta)
    if most < 0:
        return 0.0
    rng = np.random.default_rng(n_fit)  # the same draws for all sequences
    counts = rng.multinomial(n_calibration, np.full(n_fit, 1 / n_fit), _DRAWS)  # (n_draws, n_fit)
    losses = counts.astype(np.float32) @ sequence.fit_lost.astype(np.float32)
    cost = np.append(sequence.fit_cost.sum(axis=0), full_cost.sum())  # (n_thresholds + 1,)
    found = []
    for share in _LIMITS:
        over = losses > round(share * most) + 0.5  # (n_draws, n_thresholds)
        last = np.where(over.any(axis=1), over.argmax(axis=1), losses.shape[1]) - 1
        found.append(cost[last].mean())  # -1 is full thinking
    return float(100 * (1 - np.mean(found) / full_cost.sum()))
