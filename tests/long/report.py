"""All simulations: each task gives statements, with a verdict and a line to print."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

from stopadvisor.stats.bounds import max_losses
from tests.benchmarks.real_traces import MODELS
from tests.long.broken import VARIANTS, caught, sequence_over_five
from tests.long.comparison import Case, told_apart
from tests.long.comparison import cases as comparisons
from tests.long.coverage import ALPHAS, DELTA, FULL, SHORT, Check, run_cell
from tests.long.coverage import cells as coverage_cells
from tests.long.labels import BROKEN, asked_on_real, asked_on_simulated, broken_labels
from tests.long.labels import cases as label_cases
from tests.long.losses import BROKEN as BROKEN_LOSSES
from tests.long.losses import broken_losses, exact_beside, kept
from tests.long.losses import cases as loss_cases
from tests.long.savings import band_holds, covered, few_labels, interval_cases, lower_limit
from tests.long.soak import soak
from tests.long.streams import watched, watched_cases
from tests.long.two_traces import two_traces, two_traces_cases
from tests.policy.mutants import fuzz
from tests.populations import POPULATIONS, KnownPopulation

__all__ = ["Task", "run", "tasks"]

MIXED, TINY, SMALL = (POPULATIONS[k] for k in (0, 4, 5))
LIMITED = ((MIXED, 36, 36), (MIXED, 80, 79), (POPULATIONS[2], 80, 79))
"""Populations and their fit and calibration questions, on which lower limits are tried."""


@dataclass(frozen=True)
class Task:
    """One simulation, to be run in any process."""

    part: str
    work: Callable[..., list[Check]]
    arguments: tuple[Any, ...]
    short: bool | None = None
    """Given to the work, where it asks."""

    def __call__(self) -> list[Check]:
        """Run it."""
        return self.work(*self.arguments, **({} if self.short is None else {"short": self.short}))


def _loader(mutants: int, seed: int) -> list[Check]:
    """A mutant with any other end than these two has ended the task by an error."""
    found = fuzz(mutants, seed)
    line = f"{found.refused} mutants refused, {found.loaded} loaded, each within 5 s"
    return [Check("loader", found.slowest_s < 5.0, line)]


def tasks(*, short: bool) -> list[Task]:
    """Every simulation."""
    cells = [*coverage_cells()]
    if short:
        # Every population, at one risk of three: the long run has them all.  Certificates hold
        # whatever rule was chosen, and choosing on many questions would take most of the time.
        cells = [(_on_few(population), alpha) for population, alpha in cells if alpha == 0.10]
    variants = [k for k, each in enumerate(VARIANTS) if not short or each.short is not None]
    out = [Task("coverage", run_cell, (*c, SHORT if short else FULL, len(cells))) for c in cells]
    out += [Task("broken", caught, (k, len(variants)), short) for k in variants]
    out.append(Task("broken", sequence_over_five, (500 if short else 20_000,)))
    out += _savings(short=short)
    for population, alpha, n in interval_cases():
        if not short:
            out.append(Task("intervals", covered, (population, alpha, n, 500, 100_000)))
            out.append(Task("bands", band_holds, (population, alpha, n, 10, 50, 20_000)))
        elif n == 40 and alpha == 0.10 and population is MIXED:
            out.append(Task("intervals", covered, (_on_few(population), alpha, n, 100, 10_000)))
            out.append(Task("bands", band_holds, (_on_few(population), alpha, n, 1, 20, 10_000)))
    out += [Task("loader", _loader, (100 if short else 12_500, seed)) for seed in range(100, 104)]
    for name in watched_cases():
        streams = 60 if short else 2_000
        at_once = streams * 3 // 4 if "from" in name else streams
        out.append(Task("monitor", watched, (name, at_once)))
    of_losses, of_traces = [*loss_cases(short=short)], [*two_traces_cases(short=short)]
    out += [Task("losses", kept, (*case, len(of_losses))) for case in of_losses]
    sizes = (1, 60, 5_000) if short else (4, 250, 50_000)
    out += [Task("losses", broken_losses, (name, *sizes)) for name in BROKEN_LOSSES]
    out.append(Task("losses", exact_beside, (2_000 if short else 20_000,)))
    out += [Task("two traces", two_traces, (*case, len(of_traces))) for case in of_traces]
    out += [Task("labels", asked_on_simulated, case) for case in label_cases(short=short)]
    if not short:
        real = ((model, alpha) for model in MODELS for alpha in (0.05, 0.10))
        out += [Task("labels", asked_on_real, (model, alpha, 12)) for model, alpha in real]
    sizes = (1, 40, 5_000) if short else (5, 100, 50_000)
    out += [Task("labels", broken_labels, (name, *sizes)) for name in BROKEN]
    of_equals = [c for c in comparisons() if not short or _is_short(c)]
    for case in of_equals:
        repeats = 200 if case.every_schedule else 500
        if short:
            repeats = 40 if case.n_fit == 400 else 100
        out.append(Task("comparison", told_apart, (case, repeats, len(of_equals))))
    out.append(Task("gateway", soak, (200 if short else 10_000,)))
    return out


def _on_few(population: KnownPopulation) -> KnownPopulation:
    return replace(population, n_fit=min(population.n_fit, 80))


def _is_short(case: Case) -> bool:
    return case.population is MIXED and case.alpha == 0.10 and not case.every_schedule


def _savings(*, short: bool) -> Iterator[Task]:
    """Savings on few labels, and their lower limits."""
    size = (2, 5_000) if short else (300, 50_000)
    for population, alpha in ((SMALL, 0.10), (TINY, 0.15)):
        yield Task("savings", few_labels, (population, alpha, *size))
    for labels, alpha in () if short else ((400, 0.05), (900, 0.10)):
        n_fit = labels * 2 // 5
        for population in POPULATIONS[:4]:
            split = replace(population, n_fit=n_fit, n_calibration=labels - n_fit)
            yield Task("savings", few_labels, (split, alpha, 40, 50_000))
    for population, n_fit, n_calibration in LIMITED:
        resized = replace(population, n_fit=n_fit, n_calibration=n_calibration)
        # Where not even no loss certifies anything, nothing is advised.
        for alpha in (a for a in ALPHAS if max_losses(n_calibration, a, DELTA) >= 0):
            if not short:
                yield Task("lower limit", lower_limit, (resized, 300, 50_000, alpha))
            elif n_fit == 36 and alpha == ALPHAS[-1]:
                yield Task("lower limit", lower_limit, (resized, 4, 5_000, alpha))


def _work(numbered: tuple[int, Task]) -> tuple[int, list[Check]]:
    number, task = numbered
    return number, task()


def run(work: Sequence[Task], jobs: int, note: Callable[[str], None]) -> list[Check]:
    """Run tasks in `jobs` processes; the statements come in the order of the tasks."""
    started = time.monotonic()
    results: dict[int, list[Check]] = {}
    with get_context("spawn").Pool(jobs) as pool:
        for number, checks in pool.imap_unordered(_work, enumerate(work)):
            results[number] = checks
            seconds = time.monotonic() - started
            note(f"{len(results)}/{len(work)} {work[number].part} {seconds:.0f} s")
            for check in checks:
                note(check.line)
    return [check for number in range(len(work)) for check in results[number]]
