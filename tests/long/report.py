"""All simulations, judged and printed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

import numpy as np
from scipy import stats

from stopadvisor.stats.bounds import max_losses
from tests.benchmarks.real_traces import MODELS
from tests.long.broken import VARIANTS, Found, Variant, sequence_over_five
from tests.long.comparison import Case, cases, told_apart
from tests.long.coverage import ALPHAS, DELTA, FULL, SHORT, Cell, Size, ceiling, run_cell
from tests.long.coverage import cells as coverage_cells
from tests.long.intervals import LEVEL, Covered, covered, interval_cases
from tests.long.labels import (
    BROKEN,
    BUDGETS,
    WITHIN,
    Asked,
    asked_on_real,
    asked_on_simulated,
    broken_labels,
)
from tests.long.labels import cases as label_cases
from tests.long.losses import BROKEN as BROKEN_LOSSES
from tests.long.losses import Kept, broken_losses, exact_beside, kept
from tests.long.losses import cases as loss_cases
from tests.long.soak import MOST_GROWTH, Soaked, soak
from tests.long.streams import Watched, watched, watched_cases
from tests.long.strength import (
    Against,
    BlackBox,
    FewLabels,
    LowerLimit,
    against_the_paper,
    black_box,
    few_labels,
    lower_limit,
)
from tests.long.two_traces import SAME, WAYS, TwoTraces, two_traces, two_traces_cases
from tests.policy.mutants import Fuzzed, fuzz
from tests.populations import FREE_FORM, POPULATIONS, KnownPopulation

__all__ = ["Check", "Result", "Task", "judged", "run", "tasks"]

EARLY, TINY, SMALL, MIXED = POPULATIONS[1], POPULATIONS[4], POPULATIONS[5], POPULATIONS[0]
LIMITED = ((MIXED, 36, 36), (MIXED, 80, 79), (POPULATIONS[2], 80, 79))
"""Populations and their fit and calibration questions, on which lower limits are tried."""


@dataclass(frozen=True)
class Check:
    """One statement about one simulation."""

    part: str
    ok: bool
    line: str


@dataclass(frozen=True)
class Task:
    """One simulation, to be run in any process."""

    part: str
    work: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Result:
    """What a task gave."""

    task: Task
    value: Any


def _broken(index: int, *, short: bool) -> Found:
    variant: Variant = tuple(VARIANTS)[index]
    size = variant.short if short else variant.full
    assert size is not None
    return variant.run(*size)


def _broken_short(index: int) -> Found:
    return _broken(index, short=True)


def _broken_full(index: int) -> Found:
    return _broken(index, short=False)


def paper_populations() -> Iterator[KnownPopulation]:
    """Free-form and early-solved questions, under the paper's accounting and under honest costs."""
    for population in (FREE_FORM, EARLY):
        for n in (300, 400):
            for papers_costs in (True, False):
                costs = "the paper's costs" if papers_costs else "honest costs"
                yield replace(
                    population,
                    name=f"{population.name}, {n} calibration questions, {costs}",
                    n_fit=n,
                    n_calibration=n,
                    papers_costs=papers_costs,
                )


def tasks(*, short: bool) -> list[Task]:
    """Every simulation of the report."""
    size = SHORT if short else FULL
    against = Size(1, 8, 5_000) if short else Size(10, 30, 100_000)
    out = [
        Task("black box", black_box, (MIXED, alpha, 10_000 if short else 200_000))
        for alpha in (0.05, 0.15)
    ]
    for population, alpha in ((SMALL, 0.10), (TINY, 0.15)):
        runs, truth = (4, 5_000) if short else (300, 50_000)
        out.append(Task("few", few_labels, (population, alpha, runs, truth)))
    for population, n_fit, n_calibration in LIMITED:
        resized = replace(population, n_fit=n_fit, n_calibration=n_calibration)
        # Where not even no loss certifies anything, nothing is advised.
        for alpha in (a for a in ALPHAS if max_losses(n_calibration, a, DELTA) >= 0):
            if not short:
                out.append(Task("lower limit", lower_limit, (resized, 300, 50_000, alpha)))
            elif population is MIXED and alpha == ALPHAS[-1]:
                out.append(Task("lower limit", lower_limit, (resized, 4, 5_000, alpha)))
    for labels, alpha in ((400, 0.05), (900, 0.10)):
        n_fit = labels * 2 // 5
        for population in POPULATIONS[:4]:
            split = replace(population, n_fit=n_fit, n_calibration=labels - n_fit)
            if not short:
                out.append(Task("savings", few_labels, (split, alpha, 40, 50_000)))
            elif population is MIXED and labels == 400:
                out.append(Task("savings", few_labels, (split, alpha, 2, 10_000)))
    out += [
        Task("broken", _broken_short if short else _broken_full, (k,))
        for k, variant in enumerate(VARIANTS)
        if not short or variant.short is not None
    ]
    out.append(Task("sequence", sequence_over_five, (1, 500 if short else 20_000, 0)))
    out += [
        Task("coverage", run_cell, (population, alpha, size))
        for population, alpha in coverage_cells()
        # Every population, at one risk of three: the long run has them all.
        if not short or alpha == 0.10
    ]
    out += [Task("loader", fuzz, (100 if short else 12_500, seed)) for seed in range(100, 104)]
    out += [
        Task("paper", against_the_paper, (p, against))
        for p in paper_populations()
        if not short or (p.n_calibration == 300 and p.papers_costs)
    ]
    for population, alpha, n in interval_cases():
        if not short:
            out.append(Task("intervals", covered, (population, alpha, n, 500, 100_000)))
        elif n == 40 and alpha == 0.10 and population in (MIXED, EARLY):
            out.append(Task("intervals", covered, (population, alpha, n, 100, 10_000)))
    streams = 60 if short else 2_000
    for name in watched_cases():
        out.append(
            Task("monitor", watched, (name, streams * 3 // 4 if "from" in name else streams))
        )
    out += [Task("labels", asked_on_simulated, case) for case in label_cases(short=short)]
    if not short:
        real = ((model, alpha) for model in MODELS for alpha in (0.05, 0.10))
        out += [Task("labels", asked_on_real, (model, alpha, 12)) for model, alpha in real]
    out += [Task("losses", kept, case) for case in loss_cases(short=short)]
    sizes = (1, 60, 5_000) if short else (4, 250, 50_000)
    out += [Task("losses", broken_losses, (name, *sizes)) for name in BROKEN_LOSSES]
    out.append(Task("losses", exact_beside, (2_000 if short else 20_000,)))
    out += [Task("two traces", two_traces, case) for case in two_traces_cases(short=short)]
    sizes_of_broken = (1, 40, 5_000) if short else (5, 100, 50_000)
    out += [Task("labels", broken_labels, (name, *sizes_of_broken)) for name in BROKEN]
    for case in cases():
        if not short:
            repeats = 200 if case.every_schedule else 500
            out.append(Task("comparison", told_apart, (case, repeats)))
        elif case.population is MIXED and case.alpha == 0.10 and not case.every_schedule:
            out.append(Task("comparison", told_apart, (case, 40 if case.n_fit == 400 else 100)))
    out.append(Task("gateway", soak, (200 if short else 10_000,)))
    return out


def _work(numbered: tuple[int, Task]) -> tuple[int, Result]:
    number, task = numbered
    return number, Result(task, task.work(*task.arguments))


def run(work: Sequence[Task], jobs: int, note: Callable[[str], None]) -> list[Result]:
    """Run tasks in `jobs` processes; the results come in the order of the tasks."""
    started = time.monotonic()
    results: dict[int, Result] = {}
    with get_context("spawn").Pool(jobs) as pool:
        for number, result in pool.imap_unordered(_work, enumerate(work)):
            results[number] = result
            seconds = time.monotonic() - started
            note(f"{len(results)}/{len(work)} {result.task.part} {seconds:.0f} s")
            for check in judged([result]):
                note(check.line)
    return [results[number] for number in range(len(work))]


# --- Judging --------------------------------------------------------------------------------------


def judged(results: Sequence[Result]) -> list[Check]:
    """Turn results into statements, each with its verdict."""
    n_cells = sum(r.task.part == "coverage" for r in results)
    n_broken = sum(r.task.part == "broken" for r in results)
    n_cases = sum(r.task.part == "comparison" for r in results)
    checks = []
    for result in results:
        value = result.value
        if isinstance(value, Cell):
            checks += _coverage(value, n_cells)
        elif result.task.part == "broken":
            checks.append(_caught(tuple(VARIANTS)[result.task.arguments[0]], value, n_broken))
        elif result.task.part == "sequence":
            ok = value.violations <= ceiling(value.n, 1)
            checks.append(
                Check("broken", ok, f"{'fixed sequence over the same five':58} {value.share:.4f}")
            )
        elif isinstance(value, Against):
            checks.append(_stronger(value))
        elif result.task.part == "savings":
            checks.append(_saves(value))
        elif isinstance(value, FewLabels):
            checks.append(_few(value))
        elif isinstance(value, Asked):
            checks.append(_few_labels(value))
        elif result.task.work is kept:
            checks += [_kept(one, sum(r.task.work is kept for r in results)) for one in value]
        elif result.task.part == "two traces":
            n_cells = sum(r.task.part == "two traces" for r in results)
            checks += [check for one in value for check in _two_traces(one, len(SAME) * n_cells)]
        elif result.task.work is broken_losses:
            checks.append(_losses_caught(result.task.arguments[0], value))
        elif result.task.work is exact_beside:
            line = f"{'the exact test of a drop, on the same draws':53} {value.share:.4f}"
            checks.append(Check("losses", value.violations <= ceiling(value.n, 1), line))
        elif result.task.work is broken_labels:
            checks.append(_labels_caught(result.task.arguments[0], value))
        elif isinstance(value, LowerLimit):
            checks.append(_limit_holds(value))
        elif isinstance(value, Covered):
            checks.append(_covers(value))
        elif isinstance(value, Soaked):
            checks.append(_no_growth(value))
        elif isinstance(value, Fuzzed):
            checks.append(_refused(value))
        elif isinstance(value, Watched):
            checks.append(_watches(value))
        elif isinstance(value, BlackBox):
            checks.append(_black_box(value))
        elif result.task.part == "comparison":
            checks.append(
                _apart(result.task.arguments[0], value, result.task.arguments[1], n_cases)
            )
    return checks


def _refused(found: Fuzzed) -> Check:
    """A mutant with any other end than these two has ended the task by an error."""
    line = f"{found.refused} mutants refused, {found.loaded} loaded, each within 5 s"
    return Check("loader", found.slowest_s < 5.0, line)


def _watches(found: Watched) -> Check:
    if found.asked is not None and found.median is not None:
        ok = found.median <= found.asked
        end = f"median {found.median:8.0f}  asked at most {found.asked:8.0f}"
    else:
        most = ceiling(found.streams, 1)
        ok = (found.alarms > most) == found.is_broken
        end = f"alarms {found.alarms / found.streams:.4f}  limit {most / found.streams:.4f}"
        end += "  (broken, to be caught)" if found.is_broken else ""
    return Check("monitor", ok, f"{found.case:52} {found.streams:5d} streams  {end}")


def _coverage(cell: Cell, n_cells: int) -> list[Check]:
    name, found = cell.population.name, cell.outcome
    most = ceiling(found.n, n_cells)
    line = (
        f"{name:24} {cell.alpha:.2f} {cell.population.n_calibration:5d} {found.n:6d} "
        f"{found.exported / found.n:9.3f} {found.violations / found.n:9.4f} "
        f"{most / found.n:9.4f}  {found.saving:6.1f}"
    )
    return [Check("coverage", found.violations <= most, line)]


def _caught(variant: Variant, found: Found, n_checks: int) -> Check:
    most = ceiling(found.n, n_checks)
    line = (
        f"{variant.name:58} {found.share:.4f}  limit {most / found.n:.4f}  n {found.n:6d}  "
        f"(elsewhere {variant.expected})"
    )
    return Check("broken", found.violations > most, line)


def _stronger(found: Against) -> Check:
    ok = found.ours >= 1.5 * found.paper
    if found.population.startswith("early"):
        ok = found.ours >= found.paper + 10
    if "honest" in found.population:
        ok = found.ours > found.paper  # printed for comparison; the claim is the paper's accounting
    line = (
        f"{found.population:60} ours {found.ours:5.1f} %  paper {found.paper:5.1f} %  "
        f"ratio {found.ratio:.2f}  difference {found.ours - found.paper:+.1f} points"
    )
    return Check("paper", ok, line)


def _few(found: FewLabels) -> Check:
    ok = found.n_calibration != 79 or found.truly_positive >= 0.9
    line = (
        f"n_cal {found.n_calibration:3d}, alpha {found.alpha:.2f}: certified in "
        f"{found.certified:.3f} of {found.runs} runs, truly saving in {found.truly_positive:.3f}, "
        f"mean true net saving {found.saving:.1f} %"
    )
    return Check("few", ok, line)


def _saves(found: FewLabels) -> Check:
    line = (
        f"{found.population:16} alpha {found.alpha:.2f}, {found.n_calibration:3d} certify: true "
        f"net saving {found.saving:5.1f} %, certified in {found.certified:.3f} of {found.runs} "
        f"runs, broken in {found.violations}"
    )
    ok = found.violations <= ceiling(found.runs, 1) and found.saving > 0
    return Check("savings", ok, line)


def _few_labels(found: Asked) -> Check:
    """The walk ends where full labels do, and the promise is kept whatever number is planned."""
    n = found.labels.size
    ok = found.other == 0 and found.violations.max() <= ceiling(n, len(found.violations))
    savings = (found.unlabelled, *found.planned.T, found.full)
    line = (
        f"{found.name:22} {found.alpha:.2f} {found.n_calibration:5d}  "
        + "  ".join(f"{saving.mean():6.1f}" for saving in savings)
        + f"  {found.labels.mean():7.1f}  {np.quantile(found.labels, 0.9):12.0f}"
        f"  {found.other:4d} of {n}  " + " ".join(f"{v / n:.4f}" for v in found.violations)
    )
    if found.cost_of_budget > WITHIN:
        line += (
            f"  {BUDGETS[-1]} labels cost {found.cost_of_budget:.1f} points; not planned for "
            f"{(found.full - found.unplanned).mean():.1f}"
        )
    return Check("labels", ok, line)


def _labels_caught(name: str, found: Found) -> Check:
    most = ceiling(found.n, len(BROKEN))
    line = f"broken: {name:45} {found.share:.4f}  limit {most / found.n:.4f}  n {found.n}"
    return Check("labels", found.violations > most, line)


def _kept(found: Kept, n_cases: int) -> Check:
    """Broken promises of one kind, over all kinds and cases together."""
    most = ceiling(found.n, 4 * n_cases)
    line = (
        f"{found.population:16} {found.kind:9} {found.alpha:.2f} {found.n_calibration:5d} "
        f"{found.n:6d} {found.certified / found.n:9.3f} {found.violations / found.n:9.4f} "
        f"{most / found.n:9.4f}"
    )
    return Check("losses", found.violations <= most, line)


def _two_traces(found: TwoTraces, n_cases: int) -> Iterator[Check]:
    """The exact test keeps its promise.  The others are caught where they break most: the average
    where traces are the same, the better one where they are not, both in one population."""
    exact, average, better = WAYS
    caught = {(MIXED.name, SAME[0]): (better,), (MIXED.name, SAME[-1]): (average,)}
    for way in (exact, *caught.get((found.population, found.same), ())):
        of_way, is_exact = found.found[way], way == exact
        most = ceiling(of_way.n, n_cases if is_exact else 1)
        line = (
            f"{found.population:16} {found.same:4.1f} {found.alpha:.2f} {of_way.n:6d} "
            f"{found.certified / of_way.n:9.3f} {of_way.share:9.4f} {most / of_way.n:9.4f}  {way}"
        )
        yield Check("two traces", (of_way.violations <= most) == is_exact, line)


def _losses_caught(name: str, found: Found) -> Check:
    most = ceiling(found.n, len(BROKEN_LOSSES))
    line = f"broken: {name:45} {found.share:.4f}  limit {most / found.n:.4f}  n {found.n}"
    return Check("losses", found.violations > most, line)


def _limit_holds(found: LowerLimit) -> Check:
    line = (
        f"{found.population:16} n_fit {found.n_fit:3d} alpha {found.alpha:.2f}: true saving below "
        f"its limit in "
        f"{found.below / found.n:.4f} of {found.n}"
    )
    return Check("lower limit", found.below <= ceiling(found.n, 1), line)


def _covers(found: Covered) -> Check:
    """Two points below the level are taken; chance may add to them."""
    given = found.runs - found.without
    most = stats.binom.ppf(0.999, given, 1 - LEVEL + 0.02) if given else 0
    line = (
        f"{found.population:24} alpha {found.alpha:.2f} n_test {found.n_test:3d}: "
        f"{found.share:.3f} of {given}, {found.width:5.1f} points wide; none where nothing was "
        f"stopped, {found.without} of {found.runs}"
    )
    return Check("intervals", found.missed <= most, line)


def _black_box(found: BlackBox) -> Check:
    if found.policy == "full-budget":
        ok = found.true_saving == 0
    else:
        ok = found.lower is not None and found.lower > 0 and found.true_saving > 0
    line = (
        f"alpha {found.alpha:.2f}: ten probes {found.ten_probes:+.1f} %; recommended "
        f"{found.policy} {list(found.schedule or [])}, lower limit "
        f"{'none' if found.lower is None else format(found.lower, '+.1f')} %, true saving "
        f"{found.true_saving:+.1f} %"
    )
    return Check("black box", ok and found.ten_probes < -50, line)


def _apart(case: Case, share: float, repeats: int, n_cases: int) -> Check:
    most = stats.binom.ppf(1 - 0.01 / n_cases, repeats, DELTA) / repeats
    schedules = "all schedules" if case.every_schedule else "one schedule"
    line = (
        f"{case.population.name:16} n_fit {case.n_fit:3d} alpha {case.alpha:.2f} {schedules:13}: "
        f"told apart in {share:.4f} of {repeats}"
    )
    return Check("comparison", share <= most, line)


def _no_growth(found: Soaked) -> Check:
    line = (
        f"{found.requests} requests, {found.left} left by their client, {found.wrong} not answered "
        f"with 200: {found.grown / 2**20:+.1f} MiB (at most {MOST_GROWTH / 2**20:.0f}), "
        f"{found.tasks:+d} tasks, {found.files:+d} open files; {found.seconds:.0f} s"
    )
    return Check("gateway", found.ok, line)
