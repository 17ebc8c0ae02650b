"""Broken ways of certifying, each of which the check must catch.

They stand here and nowhere else.  Every function returns how many of its calibrations exported a
rule whose true risk exceeds alpha; `coverage.ceiling` says how many chance explains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from stopadvisor.assessment.candidates import grid_schedules
from stopadvisor.assessment.choice import Settings, choose
from stopadvisor.assessment.rated import RulesOnFit
from stopadvisor.assessment.sequences import FitData, ThresholdSequence
from stopadvisor.ground.arrays import FloatArray, IntArray
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.trigger import ListedTrigger
from stopadvisor.rules.families import SCALAR_FAMILIES
from stopadvisor.rules.losses import LOST
from stopadvisor.rules.scorer import Scorer
from stopadvisor.stats.bounds import last_passed, max_losses
from tests.long.coverage import DELTA, Check, Found, Truth, rare, seeded, settings_of
from tests.populations import MARKED, POPULATIONS, KnownPopulation, renamed, sequence_if_any

__all__ = ["VARIANTS", "caught", "sequence_over_five"]

MIXED, TINY, SMALL = (POPULATIONS[k] for k in (0, 4, 5))


def _fit_data(table: OpenQuestions) -> FitData:
    return FitData.build(table.as_fit(), Settings())


def _losses(scorer: Scorer, thresholds: FloatArray, table: OpenQuestions) -> IntArray:
    view = scorer.view(table)
    curve = scorer.curve(view, thresholds)
    return np.asarray(curve.totals(LOST.of(view))[0].round(), dtype=np.int64)


def _last(losses: IntArray, most: float) -> int:
    over = np.flatnonzero(losses > most)
    return (int(over[0]) if over.size else losses.size) - 1


def _without_a_bound(population: KnownPopulation) -> Callable[[int, int, int], Found]:
    def run(fit_sets: int, calibrations: int, truth: int) -> Found:
        """The most aggressive threshold whose empirical risk is at most alpha."""
        n = bad = 0
        alpha, settings = 0.10, settings_of(population, 0.10)
        table = population.draw(truth, seeded(population, alpha, 11))
        others = table if population.at_markers else None
        for fit_set in range(fit_sets):
            rng = seeded(population, alpha, 12, fit_set)
            fit = renamed(population.draw(population.n_fit, rng), "fit-")
            rules = RulesOnFit.measure(fit.as_fit(), settings, others)
            choice = choose(rules, population.n_calibration, settings)
            sequence = choice.sequences[0]
            risk = Truth.of(sequence.scorer, sequence.thresholds, table).risk
            for _ in range(calibrations):
                fresh = population.draw(population.n_calibration, rng)
                losses = _losses(sequence.scorer, sequence.thresholds, fresh)
                passing = np.flatnonzero(losses <= alpha * fresh.n_questions + 1e-9)
                n += 1
                bad += bool(passing.size and risk[passing[-1]] > alpha)
        return Found(n, bad)

    return run


def _cheapest_of_25(population: KnownPopulation, alpha: float) -> Callable[[int, int, int], Found]:
    def run(fit_sets: int, calibrations: int, truth: int) -> Found:
        """Five families over five schedules, each sequence at the whole of delta; the cheapest."""
        n = bad = 0
        table = population.draw(truth, seeded(population, alpha, 21))
        most = max_losses(population.n_calibration, alpha, DELTA)
        for fit_set in range(fit_sets):
            rng = seeded(population, alpha, 22, fit_set)
            fit = _fit_data(renamed(population.draw(population.n_fit, rng), "fit-"))
            schedules = grid_schedules(fit)[:5]
            sequences: list[ThresholdSequence] = []
            for family in ("learned", *SCALAR_FAMILIES):
                built = (sequence_if_any(fit, family, schedule) for schedule in schedules)
                sequences += [sequence for sequence in built if sequence is not None]
            risks = [Truth.of(c.scorer, c.thresholds, table).risk for c in sequences]
            for _ in range(calibrations):
                fresh = population.draw(population.n_calibration, rng)
                best = (float("inf"), 0.0)
                for sequence, risk in zip(sequences, risks, strict=True):
                    position = _last(_losses(sequence.scorer, sequence.thresholds, fresh), most)
                    if position >= 0:
                        best = min(best, (float(sequence.costs[position]), float(risk[position])))
                n += 1
                bad += best[1] > alpha
        return Found(n, bad)

    return run


def pointwise_over_five(fit_sets: int, calibrations: int, truth: int) -> Found:
    """Any of five thresholds that passes its own exact test; losses independent, risk > alpha."""
    return _five_thresholds(fit_sets * calibrations, fixed_sequence=False)


def sequence_over_five(repeats: int) -> list[Check]:
    """The same five thresholds tested as they should be: in order, to the first failure."""
    found = _five_thresholds(repeats, fixed_sequence=True)
    return [rare("broken", "fixed sequence over the same five", found)]


def _five_thresholds(repeats: int, *, fixed_sequence: bool) -> Found:
    rng = np.random.default_rng(31)
    n, alpha = 200, 0.10
    losses = rng.binomial(n, alpha * 1.005, size=(repeats, 5))
    passed = losses <= max_losses(n, alpha, DELTA)
    if fixed_sequence:
        return Found(repeats, sum(last_passed(row) >= 0 for row in passed))
    return Found(repeats, int(passed.any(axis=1).sum()))


def best_of_ten_splits(fit_sets: int, calibrations: int, truth: int) -> Found:
    """Ten split seeds over the same questions; the split that saves most is kept."""
    n = bad = 0
    alpha, population = 0.10, SMALL
    schedule = ListedTrigger(population.budgets)
    size = population.n_fit + population.n_calibration
    most = max_losses(population.n_calibration, alpha, DELTA)
    table = population.draw(truth, seeded(population, alpha, 51))
    for number in range(fit_sets * calibrations):
        rng = seeded(population, alpha, 52, number)
        questions = renamed(population.draw(size, rng), "q")
        best: tuple[float, ThresholdSequence | None, int] = (0.0, None, -1)
        for _ in range(10):
            order = rng.permutation(size)
            fit = _fit_data(questions.take(order[: population.n_fit]))
            sequence = sequence_if_any(fit, "confidence", schedule)
            assert sequence is not None
            held = questions.take(order[population.n_fit :])
            position = _last(_losses(sequence.scorer, sequence.thresholds, held), most)
            if position >= 0:
                saving = 1 - float(sequence.costs[position]) / float(fit.full_cost.sum())
                if saving > best[0]:
                    best = (saving, sequence, position)
        n += 1
        if best[1] is not None:
            thresholds = best[1].thresholds[[best[2]]]
            bad += bool(Truth.of(best[1].scorer, thresholds, table).risk[0] > alpha)
    return Found(n, bad)


@dataclass(frozen=True)
class Variant:
    """A broken procedure, with how much of it to run."""

    name: str
    run: Callable[[int, int, int], Found]
    short: tuple[int, int, int] | None
    """Fit sets, calibrations per fit set, questions for the truth; None for the long run alone."""
    full: tuple[int, int, int]


VARIANTS = (
    Variant(
        "empirical risk ≤ α, no bound", _without_a_bound(MIXED), (1, 40, 10_000), (20, 50, 200_000)
    ),
    Variant(
        "the same, probed at markers of their own",
        _without_a_bound(replace(MIXED, at_markers=True, budgets=MARKED)),
        (1, 40, 10_000),
        (20, 50, 200_000),
    ),
    Variant(
        "cheapest of 25 sequences, each at δ, n_cal 36",
        _cheapest_of_25(TINY, 0.15),
        (2, 50, 5_000),
        (20, 100, 100_000),
    ),
    Variant(
        "cheapest of 25 sequences, each at δ, n_cal 79",
        _cheapest_of_25(SMALL, 0.10),
        None,
        (20, 100, 100_000),
    ),
    Variant("pointwise over five thresholds", pointwise_over_five, (1, 2000, 0), (1, 20_000, 0)),
    Variant("best of ten split seeds", best_of_ten_splits, (1, 100, 5_000), (1, 1000, 50_000)),
)


def caught(index: int, n_checks: int, *, short: bool) -> list[Check]:
    """Run one of the variants."""
    variant = VARIANTS[index]
    size = variant.short if short else variant.full
    assert size is not None
    return [rare("broken", variant.name, variant.run(*size), n_checks, is_broken=True)]
