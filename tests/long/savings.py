"""Do true certificates save what was forecast, and do intervals cover it?

A rule is chosen and certified as `assess` and `calibrate` do, and measured on a large draw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from scipy import stats

from stopadvisor.assessment.choice import choose
from stopadvisor.certification.calibration import calibrate
from stopadvisor.certification.export import expectation
from stopadvisor.rules.outcomes import measure_rule
from tests.long.coverage import ALPHAS, Check, Found, Truth, ceiling, rare, seeded, settings_of
from tests.populations import POPULATIONS, KnownPopulation, renamed

__all__ = ["band_holds", "covered", "few_labels", "interval_cases", "lower_limit"]


def few_labels(population: KnownPopulation, alpha: float, runs: int, truth: int) -> list[Check]:
    """Runs on few labels, whole: a new fit set and a new calibration set in each."""
    table = population.draw(truth, seeded(population, alpha, 71))
    certified = positive = violations = 0
    saving = 0.0
    for run in range(runs):
        rng = seeded(population, alpha, 72, run)
        fit = renamed(population.draw(population.n_fit, rng), "fit-")
        choice = choose(fit.as_fit(), population.n_calibration, settings_of(population, alpha))
        rule = calibrate(
            choice, population.draw(population.n_calibration, rng).as_calibration()
        ).rule
        if rule is None:
            continue
        truth_of_rule = Truth.of(rule.scorer, np.array([rule.threshold]), table)
        truly = float(truth_of_rule.saving[0])
        certified += 1
        positive += truly > 0
        saving += truly
        violations += bool(truth_of_rule.risk[0] > alpha)
    ok = violations <= ceiling(runs, 1) and saving > 0
    if population.n_calibration == 79:
        ok = ok and positive >= 0.9 * runs
    line = (
        f"{population.name:16} alpha {alpha:.2f}, {population.n_calibration:3d} certify: true net "
        f"saving {saving / runs:5.1f} %, certified in {certified / runs:.3f} of {runs} runs, truly "
        f"saving in {positive / runs:.3f}, broken in {violations}"
    )
    return [Check("savings", ok, line)]


def lower_limit(
    population: KnownPopulation, runs: int, truth_questions: int, alpha: float
) -> list[Check]:
    """The advised rule, refitted, truly saves less than its lower limit on fit questions says."""
    truth = population.draw(truth_questions, seeded(population, alpha, 71))
    settings = settings_of(population, alpha)
    n = below = 0
    for number in range(runs):
        fit = population.draw(population.n_fit, seeded(population, alpha, 72, number))
        choice = choose(fit.as_fit(), population.n_calibration, settings)
        if choice.advised is None or choice.saving_lower is None:
            continue
        true = measure_rule(
            choice.advised.scorer,
            float(choice.advised.thresholds[choice.advised_index]),
            truth,
            settings.costing,
        )
        n += 1
        below += true.total_saving_pct < choice.saving_lower
    label = f"{population.name:16} n_fit {population.n_fit:3d} alpha {alpha:.2f}: below its limit"
    return [rare("lower limit", label, Found(n, below))]


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
    """Draw test parts; nothing where no fit set of several gives a certificate."""
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
        found = measured(table, rng=rng).total_saving_ci95
        if found is None:
            without += 1
        else:
            missed += not found[0] <= true <= found[1]
            widths.append(found[1] - found[0])
    label = f"{population.name:24} alpha {alpha:.2f} n_test {n_test:3d}"
    return [_held("intervals", label, missed, widths, f"; nothing stopped in {without} of {runs}")]


def band_holds(
    population: KnownPopulation, alpha: float, n: int, fit_sets: int, runs: int, truth: int
) -> list[Check]:
    """The band that a policy states, at the threshold that its own calibration certified."""
    settings = settings_of(population, alpha)
    large = population.draw(truth, seeded(population, alpha, 93), alpha=alpha)
    missed = 0
    widths = []
    for number in range(fit_sets):
        rng = seeded(population, alpha, 94, n, number)
        fit = renamed(population.draw(population.n_fit, rng, alpha=alpha), "fit-")
        choice = choose(fit.as_fit(), n, settings)
        truths = [Truth.of(c.scorer, c.thresholds, large) for c in choice.sequences]
        for _ in range(runs):
            calibration = calibrate(choice, population.draw(n, rng, alpha=alpha).as_calibration())
            rule = calibration.rule
            if rule is None:
                continue
            truth_of_rule = truths[[c.scorer is rule.scorer for c in choice.sequences].index(True)]
            true = truth_of_rule.saving[rule.certificate.index]
            seed = int(rng.integers(2**32))
            _, (low, high) = expectation(rule, calibration.entered, settings, seed=seed)
            missed += not low <= true <= high
            widths.append(high - low)
    label = f"{population.name:24} alpha {alpha:.2f} n_cal {n:3d}"
    return [_held("bands", label, missed, widths)] if widths else []


def _held(part: str, label: str, missed: int, widths: Sequence[float], more: str = "") -> Check:
    """An interval misses the truth as rarely as its level says, but for one cell of 1,000."""
    n = len(widths)
    most = stats.binom.ppf(0.999, n, 1 - LEVEL) if n else 0
    width = np.median(widths or [0])
    line = f"{label}: missed {missed} of {n}, at most {most:.0f}; {width:5.1f} points wide{more}"
    return Check(part, missed <= most, line)
