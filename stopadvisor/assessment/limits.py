"""How many losses a calibration allows, and the corresponding limits on fit questions.

For a drop the limit depends on the gains, and a category has questions of its own, so each limited
loss has its own counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stopadvisor.assessment.settings import Settings
from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.losses import Guarantee
from stopadvisor.stats.bounds import StopCurve, labels_needed, last_passed, max_losses, power
from stopadvisor.stats.trinomial import MOST_QUESTIONS, drop_power, limit_of_pairs, most_lost

__all__ = [
    "BlockCounts", "FitLimits", "Shares", "allowed", "block_counts", "counted_rows",
    "expected_most", "labels_for", "most_of", "pass_probability",
]  # fmt: skip


@dataclass(frozen=True)
class BlockCounts:
    """Counts of one loss on fit questions, by block and threshold."""

    lost: FloatArray  # (n_blocks, n_thresholds)
    gained: FloatArray | None  # (n_blocks, n_thresholds); None if nothing counts -1
    sizes: FloatArray  # (n_blocks,)
    """Questions that the loss counts, per block."""

    @cached_property
    def _steps(self) -> tuple[IntArray, FloatArray, FloatArray | None]:
        """First threshold of each run of equal counts, and the counts (lost, gained) there."""
        changed = (self.lost[:, 1:] != self.lost[:, :-1]).any(axis=0)
        if self.gained is not None:
            changed |= (self.gained[:, 1:] != self.gained[:, :-1]).any(axis=0)
        first = np.flatnonzero(np.concatenate(([True], changed)))
        return first, self.lost[:, first], None if self.gained is None else self.gained[:, first]

    def counted(self, draws: FloatArray) -> FloatArray:
        """Number of questions that the loss counts in each draw, (n_draws,)."""
        return (draws @ self.sizes.astype(np.float32)).astype(np.float64)

    def in_draws(self, draws: FloatArray) -> tuple[IntArray, FloatArray, FloatArray]:
        """Lost and gained in each draw of blocks, once per run of thresholds with equal counts.

        `draws` has shape (n_draws, n_blocks).  Returns the first threshold of each run, (n_steps,),
        and lost and gained, (n_draws, n_steps); gained is (n_draws, 1) if nothing counts -1.
        """
        first, lost, gained = self._steps
        none = np.zeros((len(draws), 1))
        return first, draws @ lost, none if gained is None else draws @ gained

    def last(self, over: BoolArray) -> IntArray:
        """Last threshold before the first that is over, in each draw; -1 for none.

        `over`, (n_draws, n_steps), has a column per run of thresholds of `in_draws`.
        """
        first, n_thresholds = self._steps[0], self.lost.shape[1]
        ends = np.where(over.any(axis=1), first[over.argmax(axis=1)], n_thresholds)
        return np.asarray(ends - 1, dtype=np.int64)

    def shares(self, index: int) -> Shares:
        """Shares lost and gained at one threshold."""
        n = max(float(self.sizes.sum()), 1.0)
        gained = 0.0 if self.gained is None else float(self.gained[:, index].sum()) / n
        return Shares(float(self.lost[:, index].sum()) / n, gained)


@dataclass(frozen=True)
class Shares:
    """Shares of the counted questions that are lost and gained, with one trace each."""

    lost: float = 0.0
    gained: float = 0.0
    lost_again: float = 0.5
    """Share of the lost questions that a second trace loses too; 0.43 to 0.69 on MATH-500."""

    @property
    def of_pairs(self) -> tuple[float, float]:
        """With two traces, the shares of questions that lose both and none."""
        both = self.lost * self.lost_again
        return both, max(1 - 2 * self.lost + both, 0.0)


@dataclass(frozen=True)
class FitLimits:
    """Limits of calibration, scaled to fit questions; an entry per limited loss."""

    most: tuple[FloatArray | IntArray, ...]
    """Most lost of `n` questions, by the number gained; one entry if nothing counts -1."""
    n: tuple[float, ...]
    """Number of calibration questions that each loss counts."""

    def last(self, counts: Sequence[BlockCounts], draws: FloatArray) -> IntArray:
        """Last threshold before the first that exceeds a limit, in each draw; -1 for none.

        Walks as calibration does.  `draws`, (n_draws, n_blocks), says how often each block is
        drawn.
        """
        found = []
        for part, most, n in zip(counts, self.most, self.n, strict=True):
            size = np.maximum(part.counted(draws), 1e-9)[:, None]
            _, lost, gained = part.in_draws(draws)
            limit = allowed(most, gained * (n / size)) * (size / max(n, 1e-9))
            found.append(part.last(lost > limit + 1e-6))
        return np.asarray(np.min(found, axis=0), dtype=np.int64)

    def fewest(self, n_fit: int) -> float:
        """Losses that the strictest limit allows among N fit questions without gains."""
        rates = [float(most[0]) / max(n, 1e-9) for most, n in zip(self.most, self.n, strict=True)]
        return min(rates) * n_fit


def allowed(most: FloatArray | IntArray, gained: FloatArray | IntArray | float) -> FloatArray:
    """Most lost for these gains, rounded to whole ones."""
    at = np.clip(np.rint(gained), 0, most.size - 1).astype(np.int64)
    return np.asarray(most[at], dtype=np.float64)


def counted_rows(table: ProbeTable, guarantee: Guarantee) -> IntArray:
    """Rows that a guarantee counts: those of its category, or all."""
    if guarantee.category is None:
        return np.arange(table.n_questions)
    return np.flatnonzero([category == guarantee.category for category in table.categories])


def block_counts(
    view: GradedTable, guarantee: Guarantee, curve: StopCurve, blocks: IntArray, n_blocks: int
) -> BlockCounts:
    """Count one loss in blocks of questions, at every threshold."""
    values = guarantee.counted.of(view)
    among = np.zeros(view.n_questions, dtype=bool)
    among[counted_rows(view, guarantee)] = True
    values[~among] = 0

    def totals(counts: IntArray) -> FloatArray:
        return curve.totals(counts, blocks, n_blocks).round().astype(np.float32)

    return BlockCounts(
        totals(np.maximum(values, 0)),
        None if guarantee.counted.is_binary else totals(np.maximum(-values, 0)),
        np.bincount(blocks, among, n_blocks).astype(np.float64),
    )


# --- What the exact test of one loss allows -------------------------------------------------------


def most_of(guarantee: Guarantee, n: int, delta: float, traces: int = 1) -> IntArray:
    """Most lost of `n` questions that pass, by the number gained; one entry for binary losses.

    With two traces, the most questions that lose both, by the number that lose none.
    """
    if n < 1 or (guarantee.counted.is_binary and traces == 1):
        return np.array([max_losses(n, guarantee.alpha, delta)])
    return most_lost(n, _limit(guarantee), delta)


def _limit(guarantee: Guarantee) -> float:
    """Limit of the mean in the trinomial test: of the drop, or of "both lost minus none lost"."""
    is_binary = guarantee.counted.is_binary
    return limit_of_pairs(guarantee.alpha) if is_binary else guarantee.alpha


def expected_most(guarantee: Guarantee, n: int, settings: Settings) -> IntArray:
    """`most_of` for one trace of each of `n` questions.

    If two traces will count, this is a forecast: half of the lost questions are lost again.
    """
    most = most_of(guarantee, n, settings.delta, settings.traces)
    if most.size == 1 or not guarantee.counted.is_binary:
        return most
    lost = np.arange(n // 2 + 1)
    both = Shares.lost_again * lost
    none = np.floor(n - 2 * lost + both).astype(np.int64)
    return np.array([last_passed(both <= most[none])])


def pass_probability(
    guarantee: Guarantee, n: int, delta: float, shares: Shares, traces: int = 1
) -> float:
    """Exact probability that `n` questions pass at one threshold, given the true shares there."""
    if n < 1:
        return 0.0
    if guarantee.counted.is_binary and traces == 1:
        return power(n, guarantee.alpha, delta, min(shares.lost, 1.0))
    at = shares.of_pairs if guarantee.counted.is_binary else (shares.lost, shares.gained)
    return min(drop_power(n, _limit(guarantee), delta, *at), 1.0)


def labels_for(
    guarantee: Guarantee,
    delta: float,
    shares: Shares,
    *,
    power_wanted: float = 0.8,
    traces: int = 1,
) -> int | None:
    """Questions that a guarantee must count to pass with that power; None if no number suffices.

    For a drop and for two traces the search stops within 2 %, and a slightly larger number may fall
    short: power is not monotone in it.
    """
    if guarantee.counted.is_binary and traces == 1:
        return labels_needed(
            guarantee.alpha, delta, expected_risk=min(shares.lost, 0.999), power_wanted=power_wanted
        )
    if shares.lost - shares.gained >= guarantee.alpha:
        return None

    def enough(n: int) -> bool:
        return pass_probability(guarantee, n, delta, shares, traces) >= power_wanted

    low, high = 0, 16
    while not enough(high):
        if high >= MOST_QUESTIONS:
            return None
        low, high = high, min(2 * high, MOST_QUESTIONS)
    while high - low > max(1, high // 50):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
