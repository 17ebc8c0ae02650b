"""How much do true certificates save?  Against the paper's grid, on few labels, in a black box."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from stopadvisor.assessment.choice import Choice, choose
from stopadvisor.assessment.recommendation import recommend
from stopadvisor.assessment.sequences import ThresholdSequence, score, sequence_of
from stopadvisor.certification.calibration import calibrate
from stopadvisor.paper.protocol import threshold_grid
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.trajectories import profile, trajectory
from stopadvisor.rules.costs import DEFAULT_CACHE_BLOCK, PAPER_WEIGHTS, Costing
from stopadvisor.rules.families import SCALAR_FAMILIES
from stopadvisor.rules.outcomes import measure_rule
from stopadvisor.rules.schedules import GridSchedule
from stopadvisor.rules.scorer import Scorer
from stopadvisor.stats.bounds import max_losses
from tests.long.coverage import DELTA, Size, Truth, seeded, settings_of
from tests.populations import KnownPopulation, renamed

__all__ = [
    "Against",
    "BlackBox",
    "FewLabels",
    "LowerLimit",
    "against_the_paper",
    "black_box",
    "few_labels",
    "lower_limit",
]


@dataclass(frozen=True)
class Against:
    """Mean true net savings (percent) on the same calibration questions, one denominator."""

    population: str
    ours: float
    paper: float
    """Its own way: ten checkpoints, its grid, Hoeffding over all of it, the cheapest feasible."""

    @property
    def ratio(self) -> float:
        """Ours in units of the paper's."""
        return self.ours / self.paper if self.paper > 0 else math.inf


def against_the_paper(population: KnownPopulation, size: Size, alpha: float = 0.15) -> Against:
    """Run both on the same calibration questions.

    The paper's side is given what helps it: classifiers fitted on the fit questions, so that its
    certificate is true of them; honest costs to choose by; and of learned and best scalar the one
    that is cheaper on calibration.
    """
    truth_table = population.draw(size.truth, seeded(population, alpha, 61))
    ours = paper = 0.0
    n = size.fit_sets * size.calibrations
    for fit_set in range(size.fit_sets):
        rng = seeded(population, alpha, 62, fit_set)
        fit = renamed(population.draw(population.n_fit, rng), "fit-")
        choice = choose(fit.as_fit(), population.n_calibration, settings_of(population, alpha))
        truths = [Truth.of(c.scorer, c.thresholds, truth_table) for c in choice.sequences]
        schedule = GridSchedule(population.budgets)
        learned = score(choice.fit, "learned", schedule)
        assert learned is not None
        sides = [[learned.scorer], [Scorer(f, schedule, None) for f in SCALAR_FAMILIES]]
        chosen: list[tuple[Scorer, float]] = []
        for _ in range(size.calibrations):
            table = population.draw(population.n_calibration, rng)
            rule = calibrate(choice, table.as_calibration()).rule
            if rule is not None:
                which = [c.scorer is rule.scorer for c in choice.sequences].index(True)
                ours += float(truths[which].saving[rule.certificate.index])
            found = [_paper_choice(side, table, alpha) for side in sides]
            feasible = [f for f in found if f is not None]
            if feasible:
                chosen.append(min(feasible, key=lambda f: f[0])[1:])
        # One pass over the truth for all of a scorer's thresholds.
        for scorer in {id(s): s for s, _ in chosen}.values():
            mine = [t for s, t in chosen if s is scorer]
            unique = np.unique(mine)[::-1]
            truth = Truth.of(scorer, unique, truth_table)
            at = dict(zip(unique.tolist(), truth.saving.tolist(), strict=True))
            paper += sum(
                max(at[t], 0.0) for t in mine
            )  # where it saves nothing it may stay at home
    return Against(population.name, ours / n, paper / n)


def _paper_choice(
    side: list[Scorer], table: OpenQuestions, alpha: float
) -> tuple[float, Scorer, float] | None:
    live = ~table.ended
    grids = [threshold_grid(s.scores(table)[live])[::-1] for s in side]
    k = sum(map(len, grids))
    slack = math.sqrt(math.log(k / DELTA) / (2 * table.n_questions))
    counts = side[0].counts(table, "kv-fork", cache_block=DEFAULT_CACHE_BLOCK)
    costs = counts.weighed(PAPER_WEIGHTS)
    best: tuple[float, Scorer, float] | None = None
    for scorer, grid in zip(side, grids, strict=True):
        curve = scorer.curve(table, grid)
        risk = curve.totals(scorer.losses(table))[0] / table.n_questions
        total = curve.totals(costs)[0]
        for position in np.flatnonzero(risk + slack <= alpha).tolist():
            if best is None or total[position] < best[0]:
                best = (float(total[position]), scorer, float(grid[position]))
    return best


@dataclass(frozen=True)
class FewLabels:
    """Runs on few labels, whole: a new fit set and a new calibration set in each."""

    population: str
    n_calibration: int
    alpha: float
    runs: int
    certified: float
    """Share of runs with a certified positive net saving."""
    truly_positive: float
    """Share of runs whose certified rule truly saves."""
    saving: float
    """Mean true net saving in percent, 0 where nothing was certified."""
    violations: int
    """Certified rules whose true risk exceeds alpha."""


def few_labels(population: KnownPopulation, alpha: float, runs: int, truth: int) -> FewLabels:
    """Share of runs that certify a saving at all."""
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
    return FewLabels(
        population.name,
        population.n_calibration,
        alpha,
        runs,
        certified / runs,
        positive / runs,
        saving / runs,
        violations,
    )


@dataclass(frozen=True)
class BlackBox:
    """One black-box workload: many probes against the joint choice (net savings in percent)."""

    alpha: float
    ten_probes: float
    """Ten checkpoints, the cheapest family, at the risk that calibration could certify."""
    policy: str
    schedule: tuple[int, ...] | None
    lower: float | None
    """One-sided 95 % lower limit of the advised rule."""
    true_saving: float
    """Of what is recommended; exactly 0 for the full budget."""


def black_box(population: KnownPopulation, alpha: float, truth: int) -> BlackBox:
    """Choose for a black-box endpoint and measure what is recommended."""
    rng = seeded(population, alpha, 81)
    fit = renamed(population.draw(population.n_fit, rng), "fit-")
    settings = replace(settings_of(population, alpha), serving="black-box")
    choice = choose(fit.as_fit(), population.n_calibration, settings)
    advice = recommend(profile(trajectory(fit), rng=rng), choice)
    saving = 0.0
    if advice.policy != "full-budget":
        assert choice.advised is not None
        sequence = choice.advised
        saving = _saving(population, sequence, choice.advised_index, alpha, truth)
    return BlackBox(
        alpha, _ten_probes(choice), advice.policy, advice.schedule, choice.saving_lower, saving
    )


def _ten_probes(choice: Choice) -> float:
    schedule = GridSchedule(tuple(choice.fit.table.budgets.tolist()))
    most = max_losses(choice.n_calibration, choice.settings.alpha, choice.settings.delta)
    limit = most / choice.n_calibration * choice.n_fit
    costs = []
    for family in ("learned", *SCALAR_FAMILIES):
        rule = score(choice.fit, family, schedule)
        sequence = None if rule is None else sequence_of(choice.fit, rule)
        if sequence is not None and sequence.index(limit) >= 0:
            costs.append(float(sequence.costs[sequence.index(limit)]))
    return 100 * (1 - min(costs) / float(choice.fit.full_cost.sum()))


def _saving(
    population: KnownPopulation,
    sequence: ThresholdSequence,
    position: int,
    alpha: float,
    truth: int,
) -> float:
    table = population.draw(truth, seeded(population, alpha, 82))
    outcome = measure_rule(
        sequence.scorer, float(sequence.thresholds[position]), table, Costing("black-box")
    )
    return outcome.total_saving_pct


@dataclass(frozen=True)
class LowerLimit:
    """How often the advised rule truly saves less than its lower limit on fit questions says."""

    population: str
    n_fit: int
    alpha: float
    n: int
    """Data sets for which a rule was advised."""
    below: int


def lower_limit(
    population: KnownPopulation, runs: int, truth_questions: int, alpha: float
) -> LowerLimit:
    """Hold the lower limit of the saving against the refitted rule on fresh questions."""
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
    return LowerLimit(population.name, population.n_fit, alpha, n, below)
