"""How much do true certificates save on few labels, and is as much saved as was said beforehand?"""

from __future__ import annotations

import numpy as np

from stopadvisor.assessment.choice import choose
from stopadvisor.certification.calibration import calibrate
from stopadvisor.rules.outcomes import measure_rule
from tests.long.coverage import Check, Found, Truth, ceiling, rare, seeded, settings_of
from tests.populations import KnownPopulation, renamed

__all__ = ["few_labels", "lower_limit"]


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
