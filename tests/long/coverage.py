"""Are the certificates true?  Fresh calibrations of chosen rules, judged by their true risk.

Everything goes through the two functions that `stopadvisor calibrate` calls: `choose` on a fit
set, then `calibrate` on many calibration sets.  Every set is drawn anew from the population's law;
the truth about each threshold is measured once per fit set on a large draw of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from stopadvisor.assessment.choice import Choice, Settings, choose
from stopadvisor.certification.calibration import calibrate
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.rules.costs import DEFAULT_CACHE_BLOCK, PAPER_WEIGHTS, full_counts
from stopadvisor.rules.scorer import Scorer
from tests.populations import POPULATIONS, KnownPopulation, renamed

__all__ = [
    "ALPHAS",
    "FULL",
    "SHORT",
    "Cell",
    "Outcome",
    "Size",
    "Truth",
    "ceiling",
    "cells",
    "run_cell",
]

ALPHAS = (0.05, 0.10, 0.15)
DELTA = 0.05


@dataclass(frozen=True)
class Size:
    """How much is simulated in each cell."""

    fit_sets: int
    calibrations: int
    """Per fit set."""
    truth: int
    """Fresh questions on which true risks are measured."""


FULL = Size(fit_sets=20, calibrations=100, truth=200_000)
SHORT = Size(fit_sets=1, calibrations=40, truth=10_000)


@dataclass(frozen=True)
class Truth:
    """A scorer's true risk and net saving at each of its thresholds."""

    risk: NDArray[np.float64]  # (n_thresholds,)
    saving: NDArray[np.float64]  # (n_thresholds,) percent

    @classmethod
    def of(cls, scorer: Scorer, thresholds: NDArray[np.float64], table: OpenQuestions) -> Truth:
        """Measured on `table`, a draw that served nothing else."""
        view = scorer.view(table)
        curve = scorer.curve(view, thresholds)
        costs = scorer.counts(view, "kv-fork", cache_block=DEFAULT_CACHE_BLOCK)
        full = full_counts(table).weighed(PAPER_WEIGHTS).sum()
        risk = curve.totals(scorer.losses(view))[0] / table.n_questions
        return cls(risk, 100 * (1 - curve.totals(costs.weighed(PAPER_WEIGHTS))[0] / full))


@dataclass(frozen=True)
class Outcome:
    """All calibrations of a cell."""

    n: int
    """Calibrations, certified or not."""
    exported: int
    violations: int
    """Exported rules whose true risk exceeds alpha."""
    saving: float
    """Mean true net saving in percent, 0 where nothing was exported."""


@dataclass(frozen=True)
class Cell:
    """A population at one alpha."""

    population: KnownPopulation
    alpha: float
    outcome: Outcome


def ceiling(n: int, n_checks: int, delta: float = DELTA) -> int:
    """Most violations among `n` that chance explains, over all checks together (99 %).

    Given its fit set each calibration violates with probability at most delta, independently of
    the others, so the count is at most binomial; Bonferroni over the checks.
    """
    return int(stats.binom.ppf(1 - 0.01 / n_checks, n, delta))


def cells() -> Iterator[tuple[KnownPopulation, float]]:
    """Every population at every alpha."""
    return ((population, alpha) for population in POPULATIONS for alpha in ALPHAS)


def seeded(population: KnownPopulation, alpha: float, *numbers: int) -> np.random.Generator:
    """A generator of its own for every cell, fit set and purpose."""
    name = zlib.crc32(population.name.encode())
    return np.random.default_rng([name, round(1000 * alpha), *numbers])


def settings_of(population: KnownPopulation, alpha: float) -> Settings:
    """The default settings, but for the families that a population asks for."""
    asked = Settings(alpha=alpha, delta=DELTA)
    return asked if population.families is None else replace(asked, families=population.families)


def run_cell(population: KnownPopulation, alpha: float, size: Size) -> Cell:
    """Simulate one cell."""
    truth_table = population.draw(size.truth, seeded(population, alpha, 1), alpha=alpha)
    # A rule probes where all questions were probed; on a grid that is everywhere.
    others = truth_table if population.at_markers else None
    tally = _Tally()
    for fit_set in range(size.fit_sets):
        rng = seeded(population, alpha, 2, fit_set)
        fit = renamed(population.draw(population.n_fit, rng, alpha=alpha), "fit-")
        settings = settings_of(population, alpha)
        choice = choose(fit.as_fit(), population.n_calibration, settings, others=others)
        truths = [Truth.of(c.scorer, c.thresholds, truth_table) for c in choice.sequences]
        for _ in range(size.calibrations):
            table = population.draw(population.n_calibration, rng, alpha=alpha)
            assert not set(fit.ids) & set(table.ids)
            tally.add(choice, truths, table, alpha)
    return Cell(population, alpha, tally.outcome())


@dataclass
class _Tally:
    n: int = 0
    exported: int = 0
    violations: int = 0
    saving: float = 0.0

    def add(
        self, choice: Choice, truths: Sequence[Truth], table: OpenQuestions, alpha: float
    ) -> None:
        found = calibrate(choice, table.as_calibration())
        self.n += 1
        if found.rule is None:
            return
        which = [c.scorer is found.rule.scorer for c in choice.sequences].index(True)
        position = found.rule.certificate.index
        self.exported += 1
        self.violations += bool(truths[which].risk[position] > alpha)
        self.saving += float(truths[which].saving[position])

    def outcome(self) -> Outcome:
        return Outcome(self.n, self.exported, self.violations, self.saving / self.n)
