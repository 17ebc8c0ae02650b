"""Are two equal families told apart?

Two candidates are made equal by construction: `confidence` and `entropy` read two signals that are
exchangeable given everything else, so that neither family can be better than the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from stopadvisor.assessment.candidates import grid_schedules
from stopadvisor.assessment.choice import Settings
from stopadvisor.assessment.rated import Resamples, compare, fit_limit
from stopadvisor.assessment.sequences import FitData, ThresholdSequence, scalar_sequence
from stopadvisor.ground.arrays import FloatArray
from stopadvisor.probes.outcomes import OpenQuestions
from tests.long.coverage import Check, Found, rare
from tests.populations import POPULATIONS, KnownPopulation

__all__ = ["Case", "cases", "told_apart"]

SIZES = (400, 80, 36)


@dataclass(frozen=True)
class Case:
    """A population, a sample size and a risk target."""

    population: KnownPopulation
    n_fit: int
    alpha: float
    every_schedule: bool
    """Whether each side also chooses among all schedules, or has the full grid alone."""


def cases() -> Iterator[Case]:
    """All populations that are not adversarial, all sizes, all alphas."""
    for population in POPULATIONS[:4]:
        for n_fit in SIZES:
            for alpha in (0.05, 0.10, 0.15):
                yield Case(population, n_fit, alpha, every_schedule=False)
    for n_fit in SIZES:
        yield Case(POPULATIONS[0], n_fit, 0.10, every_schedule=True)


def _exchangeable(
    population: KnownPopulation, n: int, alpha: float, rng: np.random.Generator
) -> OpenQuestions:
    table = population.draw(n, rng, alpha=alpha)
    n_questions, m = table.correct.shape
    level = 0.6 * rng.standard_normal((n_questions, 1))

    def signal() -> FloatArray:
        noise = 0.9 * rng.standard_normal((n_questions, m))
        sure = population.signal * (table.correct - 0.5) + level + 0.8 * np.arange(m) / m + noise
        return np.asarray(-np.logaddexp(0, -sure), dtype=np.float64)

    return replace(table, mean_logprob=signal(), mean_entropy=-signal())


def told_apart(case: Case, repeats: int, n_cases: int) -> list[Check]:
    """Data sets whose verdict prefers one of two equal families."""
    found = 0
    for number in range(repeats):
        rng = np.random.default_rng([case.n_fit, round(1000 * case.alpha), number])
        table = _exchangeable(case.population, case.n_fit, case.alpha, rng)
        fit = FitData.build(table.as_fit(), Settings())
        schedules = grid_schedules(fit)
        if not case.every_schedule:
            schedules = schedules[:1]
        sides: list[list[ThresholdSequence]] = []
        for family in ("confidence", "entropy"):
            every = (scalar_sequence(fit, family, schedule) for schedule in schedules)
            sides.append([sequence for sequence in every if sequence is not None])
        limit = fit_limit(Settings(alpha=case.alpha), (case.n_fit,))
        verdict, _ = compare(Resamples.of(fit, limit), sides[0], sides[1])
        found += verdict in ("learned better", "scalar better")
    tried = "all schedules" if case.every_schedule else "one schedule"
    label = f"{case.population.name:16} n_fit {case.n_fit:3d} alpha {case.alpha:.2f} {tried}"
    return [rare("comparison", label, Found(repeats, found), n_cases)]
