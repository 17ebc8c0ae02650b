"""Does the interval of a saving hold the true saving?  Test parts of 40 questions and more.

A rule is chosen and certified as `assess` and `calibrate` do; then many fresh test parts are drawn,
and each one's interval is held against the saving on a large draw.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from stopadvisor.assessment.choice import choose
from stopadvisor.certification.calibration import calibrate
from stopadvisor.rules.outcomes import measure_rule
from tests.long.coverage import ALPHAS, seeded, settings_of
from tests.populations import POPULATIONS, KnownPopulation, renamed

__all__ = ["LEVEL", "SIZES", "Covered", "covered", "interval_cases"]

LEVEL = 0.95
SIZES = (40, 80, 160)
_ATTEMPTS = 20
"""Fit sets until one gives a certificate; at alpha 0.05 few questions often give none."""


@dataclass(frozen=True)
class Covered:
    """How often the interval of a test part held the true saving."""

    population: str
    alpha: float
    n_test: int
    runs: int
    without: int
    """Test parts in which no question was stopped: they get no interval."""
    missed: int
    width: float
    """Median, in points."""

    @property
    def share(self) -> float:
        """Share of the intervals that held it."""
        return 1 - self.missed / max(self.runs - self.without, 1)


def interval_cases() -> Iterator[tuple[KnownPopulation, float, int]]:
    """Every population at every alpha and size."""
    return ((p, alpha, n) for p in POPULATIONS for alpha in ALPHAS for n in SIZES)


def covered(
    population: KnownPopulation, alpha: float, n_test: int, runs: int, truth: int
) -> Covered | None:
    """Draw test parts; None where no fit set of several gives a certificate."""
    rng = seeded(population, alpha, 91, n_test)
    settings = settings_of(population, alpha)
    for _ in range(_ATTEMPTS):
        fit = renamed(population.draw(population.n_fit, rng, alpha=alpha), "fit-")
        choice = choose(fit.as_fit(), population.n_calibration, settings)
        table = population.draw(population.n_calibration, rng, alpha=alpha)
        rule = calibrate(choice, table.as_calibration()).rule
        if rule is not None:
            break
    else:
        return None
    measured = partial(measure_rule, rule.scorer, rule.threshold, costing=settings.costing)
    large = population.draw(truth, rng, alpha=alpha)
    true = measured(large).total_saving_pct
    without = missed = 0
    widths = []
    for _ in range(runs):
        table = population.draw(n_test, rng, alpha=alpha)
        found = measured(table, rng=rng).saving_interval
        if found is None:
            without += 1
        else:
            missed += not found.low <= true <= found.high
            widths.append(found.high - found.low)
    width = float(np.median(widths)) if widths else float("nan")
    return Covered(population.name, alpha, n_test, runs, without, missed, width)
