"""Certificates of several contestants on the same splits of recorded traces, true and broken.

Splits and savings are those of the study `rivals`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.studies.rivals import Split, Trial
from tests.benchmarks.real_rivals import Contestant
from tests.benchmarks.real_traces import PASSES, Traces

__all__ = ["Broken", "Sizes", "broken", "draw_from_population", "run_trial"]


def draw_from_population(rows: IntArray, n_fit: int, n_calibration: int, number: int) -> Split:
    """Split `number`, with all questions outside fit for a small population.

    Calibration questions are independent draws from it, and the rule is measured on all of it.
    """
    rng = np.random.default_rng([n_fit, n_calibration, number])
    mixed = rng.permutation(rows)
    fit, rest = np.sort(mixed[:n_fit]), mixed[n_fit:]
    return Split(number, fit, rng.choice(rest, n_calibration), np.sort(rest))


@dataclass(frozen=True)
class Sizes:
    """Questions in each part of a split."""

    fit: int
    calibration: int


Make = Callable[[int], Mapping[str, Contestant]]
"""From the number of a pass to the contestants on it."""


def run_trial(
    passes: tuple[Traces, ...], splits: list[Split], make: Make, full: tuple[FloatArray, ...]
) -> Trial:
    """Fit, certify and measure every contestant in every split; splits take turns in the passes.

    `full` holds costs of full thinking for each pass, (n_questions,).
    """
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
        np.stack([traces.truncated for traces in turns]),
        np.stack([full[split.number % len(passes)] for split in splits]),
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
        """Whether delta explains the count."""
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
        split = draw_from_population(rows, sizes.fit, sizes.calibration, number)
        rng = np.random.default_rng([number, draws])
        drawn = rng.choice(split.held_out, (draws, sizes.calibration))
        for name, contestant in contestants[number % len(passes)].items():
            chosen = contestant.fit(split.fit, sizes.calibration)
            for calibration in drawn:
                risk = chosen.certify(calibration).lost[split.held_out].mean()
                counts[name] += bool(risk > alpha)
    limit = int(stats.binom.ppf(0.999, fits * draws, delta))
    return {name: Broken(count, fits * draws, limit) for name, count in counts.items()}
