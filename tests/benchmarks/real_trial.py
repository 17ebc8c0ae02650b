"""Splits, certificates and held-out savings of several contestants on the same traces.

A split says which questions choose, which certify and which are only measured.  Everything is kept
for each split and question, so that intervals can resample questions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from stopadvisor.arrays import BoolArray, FloatArray, IntArray
from tests.benchmarks.real_rivals import Contestant
from tests.benchmarks.real_traces import PASSES, Traces

__all__ = ["Broken", "Saving", "Sizes", "Split", "Trial", "broken", "draw_split", "run_trial"]

_RESAMPLES = 2000


@dataclass(frozen=True)
class Sizes:
    """Questions in each part of a split."""

    fit: int
    calibration: int


@dataclass(frozen=True)
class Split:
    """Rows of the traces; calibration rows repeat where they were drawn with replacement."""

    number: int
    fit: IntArray
    calibration: IntArray
    held_out: IntArray


def draw_split(rows: IntArray, sizes: Sizes, number: int, *, with_replacement: bool) -> Split:
    """The split of that number: the same for every contestant, model, risk and weight.

    With replacement, all questions outside fit are a small population of their own: calibration
    questions are independent draws from it, and the rule is measured on the whole of it.
    """
    rng = np.random.default_rng([sizes.fit, sizes.calibration, number])
    mixed = rng.permutation(rows)
    fit, rest = np.sort(mixed[: sizes.fit]), mixed[sizes.fit :]
    if with_replacement:
        return Split(number, fit, rng.choice(rest, sizes.calibration), np.sort(rest))
    return Split(number, fit, rest[: sizes.calibration], np.sort(rest[sizes.calibration :]))


@dataclass(frozen=True)
class Saving:
    """Percent of the cost of full thinking, mean over splits."""

    mean: float
    low: float
    """95 % interval over resampled questions, as `high`."""
    high: float


@dataclass(frozen=True)
class Trial:
    """What each contestant's certified rule did in each split."""

    held_out: BoolArray  # (n_splits, n_questions)
    shifted: BoolArray  # (n_questions,)
    """AMC23 and AIME24: measured, never part of a certificate."""
    truncated: BoolArray  # (n_splits, n_questions)
    full_cost: FloatArray  # (n_splits, n_questions)
    full_correct: BoolArray  # (n_splits, n_questions)
    cost: Mapping[str, FloatArray]  # (n_splits, n_questions) each
    lost: Mapping[str, BoolArray]  # (n_splits, n_questions) each

    def saving(
        self, name: str, minus: str | None = None, *, uncut: bool = False, shifted: bool = False
    ) -> Saving:
        """Mean held-out net saving of a contestant, or how far it is ahead of another one.

        Notes
        -----
        The interval draws questions anew, the same for every split and both contestants; rules and
        thresholds stay those of the split.
        """
        here = np.broadcast_to(self.shifted, self.held_out.shape) if shifted else self.held_out
        if uncut:
            here = here & ~self.truncated
        asked = np.flatnonzero(here.any(axis=0))
        rng = np.random.default_rng(asked.size)
        drawn = rng.multinomial(asked.size, np.full(asked.size, 1 / asked.size), _RESAMPLES)
        counts = np.vstack([np.ones(asked.size), drawn])  # (1 + n_resamples, n_asked)

        def spent(cost: FloatArray) -> FloatArray:
            return counts @ np.where(here, cost, 0.0)[:, asked].T  # (1 + n_resamples, n_splits)

        full = spent(self.full_cost)
        other = full if minus is None else spent(self.cost[minus])
        saved = (100 * (other - spent(self.cost[name])) / full).mean(axis=1)
        low, high = np.quantile(saved[1:], [0.025, 0.975]).tolist()
        return Saving(float(saved[0]), low, high)

    def lost_share(self, name: str, *, shifted: bool = False) -> float:
        """Percent of the questions that were lost, mean over splits."""
        here = np.broadcast_to(self.shifted, self.held_out.shape) if shifted else self.held_out
        return float(100 * ((self.lost[name] & here).sum(axis=1) / here.sum(axis=1)).mean())

    def certified_share(self, name: str) -> float:
        """Percent of the splits in which the certified rule ever stops a held-out question."""
        stopped = (self.cost[name] != self.full_cost) & self.held_out
        return float(100 * stopped.any(axis=1).mean())


Make = Callable[[int], Mapping[str, Contestant]]
"""From the number of a pass to the contestants on it."""


def run_trial(passes: tuple[Traces, ...], splits: list[Split], make: Make, prefill: float) -> Trial:
    """Fit, certify and measure every contestant in every split; splits take turns in the passes."""
    contestants = [make(number) for number in range(len(PASSES))]
    names = list(contestants[0])
    cost: dict[str, list[FloatArray]] = {name: [] for name in names}
    lost: dict[str, list[BoolArray]] = {name: [] for name in names}
    held_out = np.zeros((len(splits), len(passes[0].questions)), dtype=bool)
    turns = [passes[split.number % len(passes)] for split in splits]
    for row, split in enumerate(splits):
        held_out[row, split.held_out] = True
        for name, contestant in contestants[split.number % len(passes)].items():
            outcome = contestant.fit(split.fit, split.calibration.size).certify(split.calibration)
            cost[name].append(outcome.cost)
            lost[name].append(outcome.lost)
    return Trial(
        held_out,
        ~passes[0].certified,
        np.stack([traces.truncated for traces in turns]),
        np.stack([traces.full_cost(prefill) for traces in turns]),
        np.stack([traces.full_correct for traces in turns]),
        {name: np.stack(values) for name, values in cost.items()},
        {name: np.stack(values) for name, values in lost.items()},
    )


@dataclass(frozen=True)
class Broken:
    """Certificates whose rule loses more than alpha of a population that is known in full."""

    count: int
    certificates: int
    """Calibrations; one that certifies nothing breaks nothing."""
    limit: int
    """Exceeded once in a thousand times where every certificate is broken with chance delta."""

    @property
    def ok(self) -> bool:
        """Whether so many are explained by delta."""
        return self.count <= self.limit


def broken(
    passes: tuple[Traces, ...],
    rows: IntArray,
    sizes: Sizes,
    make: Make,
    *,
    fits: int,
    draws: int,
    alpha: float,
    delta: float,
) -> dict[str, Broken]:
    """Count broken certificates of each contestant: frozen fits, many calibrations of each.

    All questions outside fit are the population, so that the risk of a rule on it is known without
    error.  Calibration questions are drawn from it with replacement: drawn without, those left over
    would make up for what the drawn ones hide, and the check could hardly fail.
    """
    contestants = [make(number) for number in range(len(passes))]
    counts = dict.fromkeys(contestants[0], 0)
    for number in range(fits):
        split = draw_split(rows, sizes, number, with_replacement=True)
        rng = np.random.default_rng([number, draws])
        drawn = rng.choice(split.held_out, (draws, sizes.calibration))
        for name, contestant in contestants[number % len(passes)].items():
            chosen = contestant.fit(split.fit, sizes.calibration)
            for calibration in drawn:
                risk = chosen.certify(calibration).lost[split.held_out].mean()
                counts[name] += bool(risk > alpha)
    limit = int(stats.binom.ppf(0.999, fits * draws, delta))
    return {name: Broken(count, fits * draws, limit) for name, count in counts.items()}
