"""Splits of questions, and what several certified rules save on the held-out part of each split.

A split says which questions choose a rule, which certify it and which measure it.  Costs and losses
are kept for each split and question, so that intervals can resample questions.  Knows no rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray

__all__ = ["Saving", "Split", "Trial", "draw_split"]

_RESAMPLES = 2000


@dataclass(frozen=True)
class Split:
    """Row numbers; rows of `calibration` may repeat if they were drawn with replacement."""

    number: int
    fit: IntArray
    calibration: IntArray
    held_out: IntArray


def draw_split(
    rows: IntArray, n_fit: int, n_calibration: int, number: int, *, with_replacement: bool = False
) -> Split:
    """Split `number`: the same for every rule, risk and price.

    Parameters
    ----------
    with_replacement : bool
        Treat all questions outside fit as a small population: calibration questions are
        independent draws from it, and the rule is measured on all of it.
    """
    rng = np.random.default_rng([n_fit, n_calibration, number])
    mixed = rng.permutation(rows)
    fit, rest = np.sort(mixed[:n_fit]), mixed[n_fit:]
    if with_replacement:
        return Split(number, fit, rng.choice(rest, n_calibration), np.sort(rest))
    return Split(number, fit, rest[:n_calibration], np.sort(rest[n_calibration:]))


@dataclass(frozen=True)
class Saving:
    """Saving in percent of the cost of full thinking, mean over splits."""

    mean: float
    low: float
    """Lower end of the 95 % interval over resampled questions."""
    high: float


@dataclass(frozen=True)
class Trial:
    """What each certified rule did in each split."""

    held_out: BoolArray  # (n_splits, n_questions)
    truncated: BoolArray  # (n_splits, n_questions)
    full_cost: FloatArray  # (n_splits, n_questions)
    cost: Mapping[str, FloatArray]  # (n_splits, n_questions) each
    lost: Mapping[str, BoolArray]  # (n_splits, n_questions) each

    def saving(
        self,
        name: str,
        minus: str | None = None,
        *,
        uncut: bool = False,
        among: BoolArray | None = None,
    ) -> Saving:
        """Mean net saving of a rule, or how far it is ahead of another one.

        Parameters
        ----------
        uncut : bool
            Only on traces that were not cut off at the cap on thinking.
        among : ndarray of bool, shape (n_questions,), optional
            On these questions instead of the held-out ones of each split.

        Notes
        -----
        The interval resamples questions, the same for every split and both rules; rules and
        thresholds stay those of the split.
        """
        here = self._measured(among)
        if uncut:
            here = here & ~self.truncated
        measured = np.flatnonzero(here.any(axis=0))
        n = measured.size
        rng = np.random.default_rng(n)
        drawn = rng.multinomial(n, np.full(n, 1 / n), _RESAMPLES)
        counts = np.vstack([np.ones(n), drawn])  # (1 + n_resamples, n_measured)

        def spent(cost: FloatArray) -> FloatArray:
            return counts @ np.where(here, cost, 0.0)[:, measured].T  # (1 + n_resamples, n_splits)

        full = spent(self.full_cost)
        other = full if minus is None else spent(self.cost[minus])
        saved = (100 * (other - spent(self.cost[name])) / full).mean(axis=1)
        low, high = np.quantile(saved[1:], [0.025, 0.975]).tolist()
        return Saving(float(saved[0]), low, high)

    def lost_share(self, name: str, *, among: BoolArray | None = None) -> float:
        """Share of the questions that were lost, mean over splits."""
        here = self._measured(among)
        return float(((self.lost[name] & here).sum(axis=1) / here.sum(axis=1)).mean())

    def stopping_share(self, name: str) -> float:
        """Share of the splits in which the certified rule ever stops a held-out question."""
        stopped = (self.cost[name] != self.full_cost) & self.held_out
        return float(stopped.any(axis=1).mean())

    def _measured(self, among: BoolArray | None) -> BoolArray:
        return self.held_out if among is None else np.broadcast_to(among, self.held_out.shape)
