"""Two traces a question: certificates that break their promise, and broken ways that break more.

The second trace of a question is the first again with a chance that goes from none to all, and
otherwise an independent one.  Fit questions choose one sequence, which all ways are tested along.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from stopadvisor.assessment.choice import Settings, choose
from stopadvisor.certification.calibration import counts_of
from stopadvisor.ground.arrays import BoolArray
from stopadvisor.stats.bounds import last_passed, max_losses
from tests.long.coverage import DELTA, Check, Found, Truth, rare, seeded
from tests.populations import POPULATIONS, KnownPopulation, renamed

__all__ = ["two_traces", "two_traces_cases"]

SAME = (0.0, 0.5, 1.0)
"""Chance that the second trace is the first again."""
WAYS = ("two traces", "the average of two as if exact", "the better of two")
_CAUGHT = {(WAYS[1], 1.0), (WAYS[2], 0.0)}
FAMILIES = ("confidence", "fixed-budget")


def two_traces(
    population: KnownPopulation,
    alpha: float,
    fit_sets: int,
    calibrations: int,
    truth: int,
    n_cases: int,
) -> list[Check]:
    """Count broken certificates of each way, at each likeness of the traces.

    The exact test keeps its promise.  The others are caught where they break most: the average
    where traces are the same, the better one where they are not, both in the first population.
    """
    known = population.draw(truth, seeded(population, alpha, 91), alpha=alpha)
    n, runs = population.n_calibration, fit_sets * calibrations
    settings = Settings(alpha=alpha, families=FAMILIES)
    broken = {(same, way): 0 for same in SAME for way in WAYS}
    certified = dict.fromkeys(SAME, 0)
    for fit_set in range(fit_sets):
        rng = seeded(population, alpha, 92, fit_set)
        fit = renamed(population.draw(population.n_fit, rng, alpha=alpha), "f")
        sequence = choose(fit.as_fit(), n, settings).sequences[0]
        risk = Truth.of(sequence.scorer, sequence.thresholds, known).risk
        for _ in range(calibrations):
            drawn = population.draw(2 * n, rng, alpha=alpha)
            copied = rng.random(n)
            for same in SAME:
                again = np.where(copied < same, np.arange(n), np.arange(n, 2 * n))
                table = drawn.take(np.concatenate([np.arange(n), again]))
                view = sequence.scorer.view(table)
                curve = sequence.scorer.curve(view, sequence.thresholds)
                (counts,) = counts_of(curve, view, settings, 2)
                lost = n + counts.lost - counts.gained  # replies: 2 both + one
                passed: tuple[BoolArray, ...] = (
                    counts.passed(DELTA),
                    lost <= max_losses(2 * n, alpha, DELTA),
                    counts.lost <= max_losses(n, alpha, DELTA),
                )
                for way, passes in zip(WAYS, passed, strict=True):
                    index = last_passed(passes)
                    broken[same, way] += index >= 0 and bool(risk[index] > alpha)
                certified[same] += last_passed(passed[0]) >= 0
    checks = []
    for (same, way), violations in broken.items():
        is_exact, found = way == WAYS[0], Found(runs, violations)
        label = f"{population.name:16} {same:4.1f} {alpha:.2f} {way}"
        if is_exact:
            label += f", certified {certified[same] / runs:.3f}"
        elif population.name != POPULATIONS[0].name or (way, same) not in _CAUGHT:
            continue
        n_checks = len(SAME) * n_cases if is_exact else 1
        checks.append(rare("two traces", label, found, n_checks, is_broken=not is_exact))
    return checks


def two_traces_cases(*, short: bool) -> Iterator[tuple[KnownPopulation, float, int, int, int]]:
    """Arguments of `two_traces`."""
    if short:  # of fewer questions the average breaks more, and fewer calibrations show it
        yield replace(POPULATIONS[0], n_fit=160, n_calibration=100), 0.10, 2, 200, 20_000
        return
    for place in (0, 1, 3, 6):
        population = replace(POPULATIONS[place], n_fit=160, n_calibration=200)
        yield population, 0.10, 8, 250, 100_000
