"""Does the interval of a saving hold the true saving?  Test parts of 40 questions and more.

A rule is chosen and certified as `assess` and `calibrate` do; then many fresh test parts are drawn,
and each one's interval is held against the saving on a large draw.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from scipy import stats

from stopadvisor.assessment.choice import choose
from stopadvisor.certification.calibration import calibrate
from stopadvisor.rules.outcomes import measure_rule
from tests.long.coverage import ALPHAS, Check, seeded, settings_of
from tests.populations import POPULATIONS, KnownPopulation, renamed

__all__ = ["covered", "interval_cases"]

LEVEL = 0.95
SIZES = (40, 80, 160)
_ATTEMPTS = 20
"""Fit sets until one gives a certificate; at alpha 0.05 few questions often give none."""


def interval_cases() -> Iterator[tuple[KnownPopulation, float, int]]:
    """Every population at every alpha and size."""
    return ((p, alpha, n) for p in POPULATIONS for alpha in ALPHAS for n in SIZES)


def covered(
    population: KnownPopulation, alpha: float, n_test: int, runs: int, truth: int
) -> list[Check]:
    """Draw test parts; nothing where no fit set of several gives a certificate.

    Two points below the level are taken; chance may add to them.
    """
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
        return []
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
    most = stats.binom.ppf(0.999, len(widths), 1 - LEVEL + 0.02) if widths else 0
    line = (
        f"{population.name:24} alpha {alpha:.2f} n_test {n_test:3d}: missed {missed} of "
        f"{len(widths)}, at most {most:.0f}; {np.median(widths or [0]):5.1f} points wide; none "
        f"where nothing was stopped, {without} of {runs}"
    )
    return [Check("intervals", missed <= most, line)]
