"""Are the certificates true?  Fresh calibrations of chosen rules, judged by their true risk.

Everything goes through the two functions that `stopadvisor calibrate` calls: `choose` on a fit
set, then `calibrate` on many calibration sets.  Every set is drawn anew from the population's law;
the truth about each threshold is measured once per fit set on a large draw of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from stopadvisor.assessment.choice import Settings, choose
from stopadvisor.assessment.rated import RulesOnFit
from stopadvisor.certification.calibration import calibrate
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.rules.costs import PAPER_WEIGHTS, full_counts, stopped_counts
from stopadvisor.rules.losses import LOST
from stopadvisor.rules.scorer import Scorer
from tests.populations import POPULATIONS, KnownPopulation, renamed

__all__ = [
    "ALPHAS", "DELTA", "FULL", "SHORT", "Check", "Found", "Size", "Truth", "ceiling", "cells",
    "rare", "run_cell", "seeded", "settings_of",
]  # fmt: skip

ALPHAS = (0.05, 0.10, 0.15)
DELTA = 0.05


@dataclass(frozen=True)
class Size:
    """Number of simulations in each cell."""

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
        costs = stopped_counts(view, "kv-fork", asking=scorer.asking)
        full = full_counts(table).weighed(PAPER_WEIGHTS).sum()
        risk = curve.totals(LOST.of(view))[0] / table.n_questions
        return cls(risk, 100 * (1 - curve.totals(costs.weighed(PAPER_WEIGHTS))[0] / full))


@dataclass(frozen=True)
class Found:
    """Calibrations, certified or not, and how many of them broke their promise."""

    n: int
    violations: int

    @property
    def share(self) -> float:
        """False certificates among all calibrations."""
        return self.violations / self.n


@dataclass(frozen=True)
class Check:
    """One statement about one simulation."""

    part: str
    ok: bool
    line: str
    found: Found | None = None
    """The count, if it is one of violations."""


def rare(
    part: str, label: str, found: Found, n_checks: int = 1, *, is_broken: bool = False
) -> Check:
    """Violations are as rare as delta says; a broken way is caught by having more."""
    most = ceiling(found.n, n_checks)
    name = f"broken: {label}" if is_broken else label
    line = f"{name:62} {found.share:.4f}  limit {most / found.n:.4f}  n {found.n:6d}"
    return Check(part, (found.violations > most) == is_broken, line, found)


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


def run_cell(population: KnownPopulation, alpha: float, size: Size, n_cells: int) -> list[Check]:
    """Calibrations of a population at one alpha whose exported rule has a larger true risk."""
    truth_table = population.draw(size.truth, seeded(population, alpha, 1), alpha=alpha)
    # A rule probes where all questions were probed; on a grid that is everywhere.
    others = truth_table if population.at_markers else None
    exported = violations = 0
    saving = 0.0
    for fit_set in range(size.fit_sets):
        rng = seeded(population, alpha, 2, fit_set)
        fit = renamed(population.draw(population.n_fit, rng, alpha=alpha), "fit-")
        settings = settings_of(population, alpha)
        rules = RulesOnFit.measure(fit.as_fit(), settings, others)
        choice = choose(rules, population.n_calibration, settings)
        truths = [Truth.of(c.scorer, c.thresholds, truth_table) for c in choice.sequences]
        for _ in range(size.calibrations):
            table = population.draw(population.n_calibration, rng, alpha=alpha)
            assert not set(fit.ids) & set(table.ids)
            rule = calibrate(choice, table.as_calibration()).rule
            if rule is None:
                continue
            truth = truths[[c.scorer is rule.scorer for c in choice.sequences].index(True)]
            exported += 1
            violations += bool(truth.risk[rule.certificate.index] > alpha)
            saving += float(truth.saving[rule.certificate.index])
    n = size.fit_sets * size.calibrations
    label = (
        f"{population.name:24} {alpha:.2f} {population.n_calibration:5d} "
        f"exported {exported / n:.3f} saving {saving / n:5.1f}"
    )
    return [rare("coverage", label, Found(n, violations), n_cells)]
