"""Certificates of every loss: how many break what they promise, and broken ways that break more.

On each draw of calibration questions all kinds are tested along one sequence that fit questions
chose; a certificate is broken where any of its limits is, by the means on a large draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from stopadvisor.assessment.choice import Settings, choose
from stopadvisor.assessment.limits import block_counts, counted_rows
from stopadvisor.assessment.sequences import ThresholdSequence
from stopadvisor.certification.calibration import Counts
from stopadvisor.ground.arrays import FloatArray, IntArray
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.rules.losses import Guarantee
from stopadvisor.stats.bounds import last_passed, max_losses
from stopadvisor.stats.trinomial import most_lost
from tests.long.coverage import ALPHAS, DELTA, Check, Found, rare, seeded
from tests.populations import POPULATIONS, KnownPopulation, renamed

__all__ = ["BROKEN", "broken_losses", "cases", "exact_beside", "kept"]

HARD = "hard"
_FEW, _DROP, _GAINED = 60, 0.05, 0.005
"""Questions, drop and share gained, where the normal approximation is tried."""
FAMILIES = ("confidence", "fixed-budget")
KINDS: dict[str, Callable[[float], tuple[Guarantee, ...]]] = {
    "differs": lambda alpha: (Guarantee("differs", alpha),),
    "drop": lambda alpha: (Guarantee("drop", 0.5 * alpha),),
    "category": lambda alpha: (Guarantee("lost", alpha), Guarantee("lost", 1.5 * alpha, HARD)),
    "several": lambda alpha: (
        Guarantee("lost", alpha),
        Guarantee("drop", 0.4 * alpha),
        Guarantee("differs", 1.5 * alpha),
    ),
}
"""The promised limits at an alpha, by their name in the report."""


def drawn(
    population: KnownPopulation, n: int, rng: np.random.Generator, alpha: float, prefix: str = "c"
) -> OpenQuestions:
    """Fresh questions; hard are those that a first answer gets wrong, and some others."""
    table = renamed(population.draw(n, rng, alpha=alpha), prefix)
    hard = (table.full_correct & ~table.correct[:, 0]) | (rng.random(n) < 0.3)
    return replace(table, categories=tuple(HARD if each else None for each in hard))


def means(sequence: ThresholdSequence, table: OpenQuestions, of: Guarantee) -> FloatArray:
    """Mean of a loss at each threshold, over the questions that a limit is of."""
    scorer, rows = sequence.scorer, table.take(counted_rows(table, of))
    view = scorer.view(rows)
    curve = scorer.curve(view, sequence.thresholds)
    totals = curve.totals(of.counted.of(view))[0]
    return np.asarray(totals / rows.n_questions)


def kept(
    population: KnownPopulation,
    alpha: float,
    fit_sets: int,
    calibrations: int,
    truth: int,
    n_cases: int,
) -> list[Check]:
    """Certify every kind on many draws, and count the broken promises."""
    n = population.n_calibration
    tally = {name: [0, 0] for name in KINDS}
    known = drawn(population, truth, seeded(population, alpha, 81), alpha)
    for fit_set in range(fit_sets):
        rng = seeded(population, alpha, 82, fit_set)
        sequence = _sequence(population, alpha, rng)
        table = drawn(population, n * calibrations, rng, alpha)
        for name, of in KINDS.items():
            true = [means(sequence, known, each) for each in of(alpha)]
            for counts in counted(sequence, table, of(alpha), calibrations):
                index = _certified(counts)
                tally[name][0] += index >= 0
                tally[name][1] += index >= 0 and _is_broken(counts, true, index)
    runs = fit_sets * calibrations
    checks = []
    for name, (certified, violations) in tally.items():
        label = f"{population.name:16} {name:9} {alpha:.2f} {n:5d} certified {certified / runs:.3f}"
        checks.append(rare("losses", label, Found(runs, violations), len(KINDS) * n_cases))
    return checks


def _sequence(
    population: KnownPopulation, alpha: float, rng: np.random.Generator
) -> ThresholdSequence:
    fit = drawn(population, population.n_fit, rng, alpha, "f")
    settings = Settings(alpha=alpha, families=FAMILIES)
    return choose(fit.as_fit(), population.n_calibration, settings).sequences[0]


def counted(
    sequence: ThresholdSequence, table: OpenQuestions, of: tuple[Guarantee, ...], calibrations: int
) -> Iterator[list[Counts]]:
    """Counts of each calibration; the table holds them one after the other, equally many."""
    view = sequence.scorer.view(table)
    curve = sequence.scorer.curve(view, sequence.thresholds)
    blocks = np.arange(table.n_questions) // (table.n_questions // calibrations)
    found = [block_counts(view, each, curve, blocks, calibrations) for each in of]
    for row in range(calibrations):
        counts = []
        for each, part in zip(of, found, strict=True):
            lost = part.lost[row].astype(np.int64)
            gained = lost * 0 if part.gained is None else part.gained[row].astype(np.int64)
            counts.append(Counts(each, int(part.sizes[row]), lost, gained))
        yield counts


def _certified(counts: list[Counts]) -> int:
    """Position that all limits certify together; -1 for none."""
    passed = np.array([each.passed(DELTA) for each in counts])
    return last_passed(np.logical_and.reduce(passed))


def _is_broken(counts: list[Counts], true: list[FloatArray], index: int) -> bool:
    """Whether any limit is exceeded in truth."""
    pairs = zip(counts, true, strict=True)
    return any(bool(mean[index] > each.guarantee.alpha) for each, mean in pairs)


# --- Broken variants ------------------------------------------------------------------------------


def _all_for_the_category(counts: list[Counts]) -> int:
    """The category's limit is tested on all questions."""
    whole, of_category = counts
    return _certified([replace(whole, guarantee=replace(of_category.guarantee, category=None))])


def _any_of_several(counts: list[Counts]) -> int:
    """One limit that passes is taken for all."""
    return max(_certified([each]) for each in counts)


def _lost_for_differs(counts: list[Counts]) -> int:
    """Differing replies are promised by what was lost."""
    lost, _, differs = counts
    return _certified([replace(lost, guarantee=Guarantee("lost", differs.guarantee.alpha))])


_ON_SEQUENCES: dict[str, tuple[str, Callable[[list[Counts]], int]]] = {
    "a category by all questions": ("category", _all_for_the_category),
    "several, of which one passes": ("several", _any_of_several),
    "differing replies by those lost": ("several", _lost_for_differs),
}
BROKEN = (*_ON_SEQUENCES, "a drop by the normal approximation")


def broken_losses(name: str, fit_sets: int, calibrations: int, truth: int) -> list[Check]:
    """Calibrations certified in a broken way that break any of their promises."""
    if name in _ON_SEQUENCES:
        found = _on_sequences(name, fit_sets, calibrations, truth)
    else:
        found = _normal_approximation(20 * fit_sets * calibrations)
    return [rare("losses", name, found, len(BROKEN), is_broken=True)]


def _on_sequences(name: str, fit_sets: int, calibrations: int, truth: int) -> Found:
    kind, way = _ON_SEQUENCES[name]
    population, alpha, violations = POPULATIONS[0], 0.10, 0
    of = KINDS[kind](alpha)
    known = drawn(population, truth, seeded(population, alpha, 83), alpha)
    for fit_set in range(fit_sets):
        rng = seeded(population, alpha, 84, fit_set)
        sequence = _sequence(population, alpha, rng)
        table = drawn(population, population.n_calibration * calibrations, rng, alpha)
        true = [means(sequence, known, each) for each in of]
        for counts in counted(sequence, table, of, calibrations):
            index = way(counts)
            violations += index >= 0 and _is_broken(counts, true, index)
    return Found(fit_sets * calibrations, violations)


def _normal_approximation(n_runs: int) -> Found:
    """A mean and its standard error, at a drop of exactly alpha and few changed answers."""
    lost, gained = _at_alpha(n_runs)
    mean = (lost - gained) / _FEW
    error = np.sqrt(((lost + gained) / _FEW - mean**2) / _FEW)
    return Found(n_runs, int((mean + 1.645 * error <= _DROP).sum()))


def exact_beside(n_runs: int) -> list[Check]:
    """The exact test on the same draws."""
    lost, gained = _at_alpha(n_runs)
    found = Found(n_runs, int((lost <= most_lost(_FEW, _DROP, DELTA)[gained]).sum()))
    return [rare("losses", "the exact test of a drop, on the same draws", found)]


def _at_alpha(n_runs: int) -> tuple[IntArray, IntArray]:
    """Lost and gained of few questions, at a drop of exactly what is to be excluded."""
    shares = [_DROP + _GAINED, _GAINED, 1 - _DROP - 2 * _GAINED]
    lost, gained, _ = np.random.default_rng(85).multinomial(_FEW, shares, n_runs).T
    return lost, gained


# --- What is run ----------------------------------------------------------------------------------


def cases(*, short: bool) -> Iterator[tuple[KnownPopulation, float, int, int, int]]:
    """Arguments of `kept`."""
    if short:
        yield POPULATIONS[0], 0.10, 1, 40, 5_000
        return
    for population in (POPULATIONS[k] for k in (0, 1, 3, 6)):
        for alpha in ALPHAS:
            if max_losses(population.n_calibration, alpha, DELTA) >= 0:
                yield population, alpha, 8, 250, 50_000
