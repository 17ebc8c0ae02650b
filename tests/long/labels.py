"""Lost answers certified with few labels, against the same with all of them.

Rules are chosen on fit questions without gold, by agreement with full thinking.  Then a walk asks
for the labels of calibration questions: as many as it takes, which must end where full labels do,
or as many as were planned for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from stopadvisor.assessment.choice import Choice, Settings, choose
from stopadvisor.certification.certify import to_choose_by
from stopadvisor.certification.labelling import asking_plan, label_tests
from stopadvisor.ground.arrays import FloatArray
from stopadvisor.probes.outcomes import FitQuestions, OpenQuestions
from stopadvisor.rules.losses import LOST
from stopadvisor.stats.adaptive_labels import AskingPlan, LabelTest, LabelWalk, asking_order, walk
from stopadvisor.stats.label_sample import most_lost_labelled
from stopadvisor.studies.rivals import draw_split
from tests.benchmarks.real_advisor import StopAdvisor
from tests.benchmarks.real_traces import PASSES, load_traces
from tests.long.coverage import DELTA, Check, Found, Truth, ceiling, rare, seeded, settings_of
from tests.populations import POPULATIONS, KnownPopulation, regraded, renamed

__all__ = ["BROKEN", "asked_on_real", "asked_on_simulated", "broken_labels", "cases"]

BUDGETS = (60, 150)
_WITHIN = 1.0
"""Points of saving that the larger of them may cost."""


def _unlabelled(table: OpenQuestions) -> OpenQuestions:
    """The same questions without gold: what equals the natural answer counts as right."""
    full = table.full_codes
    correct = (table.answer_codes == full[:, None]) & (full >= 0)[:, None]
    return regraded(table, correct=correct, natural_correct=np.ones(len(full), dtype=np.bool_))


def _choose(fit: FitQuestions, n: int, settings: Settings) -> Choice:
    """As `certification.certify` chooses where few labels will say what is lost."""
    return replace(choose(fit, n, to_choose_by(settings)), settings=settings)


def _tests(choice: Choice, table: OpenQuestions, plan: AskingPlan) -> tuple[LabelTest, ...]:
    """Every label is known to them; `walk` reads those that it asks for."""
    tests = label_tests(choice, table.as_calibration(), plan)
    found = []
    for test, sequence in zip(tests, choice.sequences, strict=True):
        view = sequence.scorer.view(table)
        lost = sequence.scorer.curve(view, sequence.thresholds).each(LOST.of(view) > 0)
        found.append(replace(test, lost=lost & test.differs))
    return tuple(found)


def _full(test: LabelTest) -> int:
    """Last threshold that full labels certify, counted by itself."""
    over = np.flatnonzero(test.lost.sum(axis=0) > test.most)
    return (int(over[0]) if over.size else test.lost.shape[1]) - 1


def _is_broken(
    tests: Sequence[LabelTest], end: LabelWalk, truths: Sequence[Truth] | None, alpha: float
) -> bool:
    """Whether the rule that is certified has a true risk above alpha, where that is known."""
    reached = [(t.saving(i), k, i) for k, (t, i) in enumerate(zip(tests, end.indices, strict=True))]
    saving, which, index = max(reached)
    return truths is not None and saving > 0 and bool(truths[which].risk[index] > alpha)


def _measured(
    name: str, alpha: float, runs: Iterator[tuple[Choice, OpenQuestions, Sequence[Truth] | None]]
) -> list[Check]:
    """Each calibration with all labels, with those asked for, and with a budget.

    The walk ends where full labels do, and the promise is kept whatever number is planned.
    """
    labels, full, planned, unplanned, none = [], [], [], [], []
    other = n = 0
    violations = np.zeros(1 + len(BUDGETS), dtype=np.int64)
    planned_for: Choice | None = None
    for number, (choice, table, truths) in enumerate(runs):
        n, order = table.n_questions, asking_order(table.keys, str(number))
        if choice is not planned_for:
            plans = {budget: asking_plan(choice, order, budget) for budget in BUDGETS}
            planned_for = choice
        tests = _tests(choice, table, AskingPlan(order))
        unknown = np.zeros(n, dtype=bool)
        end = walk(tests, unknown, order, budget=None)
        # What could not save more was not asked about.
        best = max(t.saving(_full(t)) for t in tests)
        other += end.saving(tests) != best or end.indices[0] != _full(tests[0])
        labels.append(end.asked.size)
        full.append(best)
        none.append(walk(tests, unknown, order).saving(tests))
        unplanned.append(walk(tests, unknown, order, budget=BUDGETS[-1]).saving(tests))
        ends = [(tests, end)]
        for budget, plan in plans.items():
            fewer = _tests(choice, table, replace(plan, order=order))
            ends.append((fewer, walk(fewer, unknown, order, budget=budget)))
        planned.append([reached.saving(of) for of, reached in ends[1:]])
        violations += [_is_broken(of, reached, truths, alpha) for of, reached in ends]
    runs_of = len(labels)
    ok = other == 0 and violations.max() <= ceiling(runs_of, len(violations))
    savings = [np.mean(none), *np.mean(planned, axis=0), np.mean(full)]
    line = (
        f"{name:22} {alpha:.2f} {n:5d}  "
        + "  ".join(f"{saving:6.1f}" for saving in savings)
        + f"  {np.mean(labels):7.1f}  {np.quantile(labels, 0.9):12.0f}  {other:4d} of {runs_of}  "
        + " ".join(f"{v / runs_of:.4f}" for v in violations)
    )
    if savings[-1] - savings[-2] > _WITHIN:
        line += (
            f"  {BUDGETS[-1]} labels cost {savings[-1] - savings[-2]:.1f} points; not planned for "
            f"{savings[-1] - np.mean(unplanned):.1f}"
        )
    return [Check("labels", ok, line)]


def asked_on_simulated(
    population: KnownPopulation, n: int, alpha: float, fit_sets: int, calibrations: int, truth: int
) -> list[Check]:
    """Fresh calibration sets of `n` questions each, after a choice on two thirds as many."""

    def runs() -> Iterator[tuple[Choice, OpenQuestions, Sequence[Truth] | None]]:
        known = population.draw(truth, seeded(population, alpha, 71), alpha=alpha)
        for fit_set in range(fit_sets):
            rng = seeded(population, alpha, 72, fit_set)
            fit = renamed(population.draw(n * 2 // 3, rng, alpha=alpha), "fit-")
            unlabelled = _unlabelled(fit).as_fit()
            choice = _choose(unlabelled, n, Settings(alpha=alpha, delta=DELTA))
            truths = [Truth.of(s.scorer, s.thresholds, known) for s in choice.sequences]
            for _ in range(calibrations):
                yield choice, population.draw(n, rng, alpha=alpha), truths

    return _measured(population.name, alpha, runs())


def asked_on_real(model: str, alpha: float, splits: int) -> list[Check]:
    """Recorded traces of MATH-500, one a question: 200 choose, 300 certify."""

    def runs() -> Iterator[tuple[Choice, OpenQuestions, Sequence[Truth] | None]]:
        for number in range(splits):
            traces = load_traces(model, number % len(PASSES))
            table = StopAdvisor(traces, None, alpha, DELTA, 1.0).table
            split = draw_split(traces.rows_of("all"), 200, 300, number)
            fit = _unlabelled(table.take(split.fit)).as_fit()
            settings = Settings(alpha=alpha, delta=DELTA, allow_truncated=True)
            yield _choose(fit, 300, settings), table.take(split.calibration), None

    return _measured(f"{model}, recorded", alpha, runs())


# --- Broken ways of asking ------------------------------------------------------------------------

_BROKEN_AT = 0.10
"""Alpha."""


def by_the_stopped_side(test: LabelTest) -> int:
    """Asks once, of those stopped by then, and takes what is stopped later as kept."""
    open_ = test.differs.sum(axis=0) > test.most
    asked = test.differs[:, open_.argmax()]
    over = test.lost[asked].sum(axis=0) > test.most
    return int(over.argmax()) - 1 if over.any() else over.size - 1


def by_an_order_chosen_after(test: LabelTest) -> int:
    """Asks ten of those that differ, first what it saw is not lost, and takes the rest as alike."""
    most = np.broadcast_to(test.most, test.differs.shape[1:])
    for at in range(test.differs.shape[1]):
        differing = test.lost[test.differs[:, at], at]
        seen = np.sort(differing)[:10]
        if seen.size and seen.mean() * differing.size > most[at]:
            return at - 1
    return int(test.differs.shape[1]) - 1


def by_a_sample_chosen_after(test: LabelTest) -> int:
    """Draws the sample again while every label is known, and keeps the one that suits best."""
    n, reached, rng = len(test.lost), [], np.random.default_rng(75)
    most = most_lost_labelled(n, 10, _BROKEN_AT, DELTA)[test.differs.sum(axis=0)]
    for _ in range(200):
        order = rng.permutation(n)
        lost, differs = test.lost[order], test.differs[order]
        over = (lost & (differs.cumsum(axis=0, dtype=np.int16) <= 10)).sum(axis=0) > most
        reached.append(int(over.argmax()) - 1 if over.any() else over.size - 1)
    return max(reached)


BROKEN: dict[str, Callable[[LabelTest], int]] = {
    "labels asked from the stopped side only": by_the_stopped_side,
    "order of asking chosen after the labels": by_an_order_chosen_after,
    "which labels count chosen after them": by_a_sample_chosen_after,
}


def broken_labels(name: str, fit_sets: int, calibrations: int, truth: int) -> list[Check]:
    """Calibrations whose rule, certified by a broken way of asking, has a risk above alpha."""
    way, violations = BROKEN[name], 0
    for fit_set in range(fit_sets):
        tests, risk = _calibrations(fit_set, calibrations, truth)
        for index in map(way, tests):
            violations += bool(index >= 0 and risk[index] > _BROKEN_AT)
    found = Found(fit_sets * calibrations, violations)
    return [rare("labels", name, found, len(BROKEN), is_broken=True)]


@cache  # the same for every broken way
def _calibrations(fit_set: int, number: int, truth: int) -> tuple[list[LabelTest], FloatArray]:
    """The first test of each of many calibrations, and the true risk at each of its thresholds."""
    population, alpha = POPULATIONS[0], _BROKEN_AT
    n, rng = population.n_calibration, seeded(population, alpha, 74, fit_set)
    fit = renamed(population.draw(population.n_fit, rng, alpha=alpha), "fit-")
    choice = _choose(_unlabelled(fit).as_fit(), n, settings_of(population, alpha))
    known = population.draw(truth, seeded(population, alpha, 73), alpha=alpha)
    sequence, everyone = choice.sequences[0], AskingPlan(np.arange(n))
    risk = Truth.of(sequence.scorer, sequence.thresholds, known).risk
    drawn = (population.draw(n, rng, alpha=alpha) for _ in range(number))
    return [_tests(choice, table, everyone)[0] for table in drawn], risk


# --- What is run ----------------------------------------------------------------------------------

_LARGEST = 1080
"""Calibration questions of 1,800 unlabelled ones."""


def cases(*, short: bool) -> Iterator[tuple[KnownPopulation, int, float, int, int, int]]:
    """Arguments of `asked_on_simulated`."""
    if short:
        yield POPULATIONS[0], 160, 0.10, 1, 40, 5_000
        return
    for population in POPULATIONS[:4]:
        for n in (160, 400):
            for alpha in (0.05, 0.10):
                yield population, n, alpha, 3, 40, 20_000
        yield population, _LARGEST, 0.05, 2, 40, 20_000
    yield POPULATIONS[0], _LARGEST, 0.10, 2, 40, 20_000
