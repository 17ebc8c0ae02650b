"""The joint choice on fit questions: what it sees, what it takes, and how it compares."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.stats import binom

from stopadvisor.assessment.choice import Choice, Settings, choose
from stopadvisor.assessment.limits import FitLimits
from stopadvisor.assessment.rated import (
    SIMPLER_WITHIN,
    Imitation,
    RatedRule,
    RulesOnFit,
    certification_probability,
    rank_of,
)
from stopadvisor.assessment.sequences import ThresholdSequence
from stopadvisor.assessment.settings import SettingsOverrides
from stopadvisor.ground.arrays import FloatArray
from stopadvisor.ground.errors import CalibrationError, ProbeError
from stopadvisor.probes.outcomes import FitQuestions, OpenQuestions
from stopadvisor.probes.table import ProbeTable
from stopadvisor.probes.trigger import ListedTrigger
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.rules.losses import Guarantee
from stopadvisor.stats.bounds import max_losses, unspent
from tests.populations import POPULATIONS, regraded, renamed

FREE_FORM = POPULATIONS[3]
LIGHT = Settings(alpha=0.15, families=("learned", "confidence", "entropy"))
WIDE = replace(LIGHT, families=(*LIGHT.families, "agreement", FIXED_BUDGET))


def draw(n: int, seed: int) -> OpenQuestions:
    return renamed(FREE_FORM.draw(n, np.random.default_rng(seed)), "f")


@pytest.fixture(scope="module")
def table() -> OpenQuestions:
    return draw(150, 0)


@pytest.fixture(scope="module")
def light(table: OpenQuestions) -> Choice:
    return choose(table.as_fit(), 120, LIGHT)


# --- What a choice sees ---------------------------------------------------------------------------


def test_a_choice_is_given_no_calibration_question() -> None:
    # Of calibration it learns how many questions there are, and of all others where they were
    # probed, in a table without outcomes: none can reach what is tested.
    def given(function: Callable[..., Any]) -> dict[str, Any]:
        parameters = inspect.signature(function, eval_str=True).parameters
        return {name: parameter.annotation for name, parameter in parameters.items()}

    assert given(choose) == {
        "questions": FitQuestions | RulesOnFit,
        "n_calibration": int,
        "settings": Settings,
        "categories": Mapping[str | None, int] | None,
    }
    assert given(RulesOnFit.measure) == {
        "table": FitQuestions,
        "settings": Settings,
        "others": ProbeTable | None,
    }


# --- What it takes --------------------------------------------------------------------------------


def rated(rules: RulesOnFit, settings: Settings) -> list[tuple[float, ThresholdSequence]]:
    """Every candidate with its rating."""
    imitation = Imitation.draw(rules.fit, 120, settings)
    return [(imitation.rate(c).rating_pct, c) for c in rules.candidates]


def same(one: ThresholdSequence, other: ThresholdSequence) -> bool:
    return one.scorer == other.scorer and np.array_equal(one.thresholds, other.thresholds)


@pytest.fixture(scope="module")
def wide(table: OpenQuestions) -> RulesOnFit:
    return RulesOnFit.measure(table.as_fit(), WIDE)


def test_the_simplest_rule_near_the_best_is_tested_first(
    table: OpenQuestions, wide: RulesOnFit
) -> None:
    found = choose(wide, 120, WIDE)
    all_of_them = rated(wide, WIDE)
    best, cheapest = max(all_of_them, key=lambda pair: pair[0])
    assert best > 0
    lead = found.margin if rank_of(cheapest.scorer.family) == 2 else SIMPLER_WITHIN
    near = [(rating, c) for rating, c in all_of_them if rating >= best - lead]
    rank = min(rank_of(c.scorer.family) for _, c in near)
    simplest = [(rating, c) for rating, c in near if rank_of(c.scorer.family) == rank]
    first = max(simplest, key=lambda pair: pair[0])[1]
    others = [pair for pair in all_of_them if rank_of(pair[1].scorer.family) != rank]
    second = max(others, key=lambda pair: pair[0])[1]
    assert found.advised is found.sequences[0]
    assert same(found.sequences[0], first)
    assert same(found.sequences[1], second)
    assert len(found.sequences) == 2


@pytest.fixture(scope="module")
def measured(table: OpenQuestions) -> RulesOnFit:
    families = ("learned", "confidence", FIXED_BUDGET)
    return RulesOnFit.measure(table.as_fit(), replace(LIGHT, families=families))


@pytest.mark.parametrize(
    ("learned", "scalar", "fixed", "advised"),
    [
        # Rated higher over several limits, and behind at the one asked for.
        ((36.9, 28.2), (29.3, 29.4), (33.3, 30.3), "learned"),
        # Within a point by rating.
        ((36.9, 28.2), (36.0, 20.0), (33.3, 19.9), "confidence"),
        # Nothing is expected at the limit itself.
        ((25.0, 0.0), (2.0, 0.0), (-1.0, 0.0), "learned"),
        # Ahead by less than the noise of choosing.
        ((5.0, 4.0), (2.0, 1.0), (-1.0, 0.0), "confidence"),
    ],
)
def test_the_rating_over_several_limits_decides_and_not_the_saving_at_one(
    table: OpenQuestions,
    measured: RulesOnFit,
    monkeypatch: pytest.MonkeyPatch,
    learned: tuple[float, float],
    scalar: tuple[float, float],
    fixed: tuple[float, float],
    advised: str,
) -> None:
    expected = {"learned": learned, "confidence": scalar, FIXED_BUDGET: fixed}

    def told(_: Imitation, sequence: ThresholdSequence) -> RatedRule:
        return RatedRule(sequence, *expected[sequence.scorer.family])

    monkeypatch.setattr(Imitation, "rate", told)
    found = choose(measured, 120, LIGHT)
    assert found.advised is not None
    assert found.advised.scorer.family == advised


def test_a_sequence_that_saves_nothing_is_no_second_one() -> None:
    """Where each probe costs more than it can save, only what asks nobody is tested."""
    fit_table = draw(150, 0)
    dear = replace(fit_table, probe_tokens=np.full(fit_table.probe_tokens.shape, 4000.0))
    settings = replace(WIDE, families=("confidence", "entropy", FIXED_BUDGET))
    rules = RulesOnFit.measure(dear.as_fit(), settings)
    found = choose(rules, 120, settings)
    assert found.advised is None
    (only,) = found.sequences
    assert same(only, max(rated(rules, settings), key=lambda pair: pair[0])[1])
    assert found.label_savings == {}


@pytest.mark.slow
def test_points_are_the_best_of_each_kind_measured_where_calibration_could_stop(
    table: OpenQuestions, wide: RulesOnFit
) -> None:
    chosen = choose(wide, 120, WIDE)
    limit = FitLimits((np.array([max_losses(120, 0.15, 0.05)]),), (120.0,))
    all_of_them = rated(wide, WIDE)
    for point, families in (
        (chosen.comparison.learned, {"learned"}),
        (chosen.comparison.scalar, {"confidence", "entropy", "agreement"}),
        (chosen.comparison.agreement, {"agreement"}),
        (chosen.comparison.fixed_budget, {FIXED_BUDGET}),
    ):
        kind = [pair for pair in all_of_them if pair[1].scorer.family in families]
        _, sequence = max(kind, key=lambda pair: pair[0])
        assert point is not None
        assert any(same(sequence, compared) for compared in chosen.compared)
        scorer, position = sequence.scorer, sequence.index(limit)
        outcome = wide.fit.outcome(sequence, position)
        assert (point.family, point.feasible) == (scorer.family, True)
        assert point.fit_risk == outcome.risk == sequence.losses[position] / 150
        assert point.fit_accuracy == outcome.accuracy
        assert point.fit_total_saving_pct == outcome.total_saving_pct
        assert outcome.total_saving_pct == pytest.approx(sequence.savings[position])
        if scorer.family == FIXED_BUDGET:
            budget = int(sequence.thresholds[position])
            assert point.schedule == (budget,)
            assert point.where == f"at {budget} thinking tokens, without a probe before"
        else:
            assert isinstance(scorer.schedule, ListedTrigger)
            assert point.schedule == scorer.schedule.positions
            assert point.where == scorer.schedule.describe()


def test_the_advised_point_is_that_of_the_advised_sequence(light: Choice) -> None:
    assert (light.comparison.fixed_budget, light.comparison.agreement) == (None, None)  # not asked
    assert light.advised is not None
    assert light.advised_point is not None
    assert light.advised_point.family == light.advised.scorer.family
    limit = FitLimits((np.array([max_losses(120, 0.15, 0.05)]),), (120.0,))
    assert light.advised_index == light.advised.index(limit)
    assert light.advised_point.fit_risk == light.advised.losses[light.advised_index] / 150


# --- What is tested at which error probability ----------------------------------------------------


@pytest.mark.parametrize("n", [15, 40, 120, 333])
@pytest.mark.parametrize("alpha", [0.02, 0.05, 0.15])
def test_the_second_sequence_has_what_the_exact_test_of_the_first_leaves(
    light: Choice, n: int, alpha: float
) -> None:
    found = replace(light, settings=replace(LIGHT, alpha=alpha))
    first, second = found.deltas(n)
    assert first == 0.05
    most = max_losses(n, alpha, first)
    if most < 0:
        assert second == 0.0  # there is no first test that could leave anything
        return
    size = binom.cdf(most, n, alpha)
    assert second == unspent(n, alpha, 0.05) == pytest.approx(first - size)
    # Both together are wrong with a probability of at most delta.
    again = max_losses(n, alpha, second) if second > 0 else -1
    assert size + binom.cdf(again, n, alpha) <= 0.05


@pytest.mark.parametrize("change", [{"loss": "drop"}, {"also": (Guarantee("drop", 0.15),)}])
def test_where_the_size_of_the_first_is_not_known_exactly_nothing_is_left(
    light: Choice, change: dict[str, Any]
) -> None:
    found = replace(light, settings=replace(LIGHT, **change))
    assert found.deltas(120) == (0.05, 0.0)
    assert replace(light, sequences=light.sequences[:1]).deltas(120) == (0.05,)


def test_too_few_calibration_questions_are_infeasible(table: OpenQuestions) -> None:
    found = choose(table.as_fit(), 18, LIGHT)  # 19 could exclude 0.15 at 0.05, with no loss at all
    assert found.comparison.verdict == "inconclusive"
    assert found.advised is None
    assert found.probability == 0.0
    assert found.comparison.learned is not None
    assert not found.comparison.learned.feasible


def test_the_chance_of_a_second_rule_is_that_at_what_the_first_leaves_of_delta(
    table: OpenQuestions, measured: RulesOnFit, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def told(sequence: ThresholdSequence, at: Settings, counted: object) -> float:
        asked.append((sequence, at.delta))
        return 0.3 * len(asked)

    monkeypatch.setattr("stopadvisor.assessment.choice.certification_probability", told)
    found = choose(measured, 120, LIGHT)
    assert len(found.sequences) == 2
    assert asked == list(zip(found.sequences, found.deltas(120), strict=True))
    assert found.probability == 0.6


def test_the_chance_counts_what_the_bound_counts(light: Choice) -> None:
    sequence = light.sequences[0]
    (part,), more = sequence.counts, sequence.losses + 9

    def lost(losses: FloatArray) -> ThresholdSequence:
        return replace(sequence, losses=losses, counts=(replace(part, lost=losses[None]),))

    risk = lost(more).useful_risk
    assert risk
    expected = float(stats.binom.cdf(max_losses(400, 0.15, 0.05), 400, risk))
    assert 0 < expected < 1
    found = certification_probability(lost(more), LIGHT, (400,))
    assert found == pytest.approx(expected, rel=1e-9)
    # Losing every question is no chance, however the shares come out.
    every = lost(np.full_like(sequence.losses, light.n_fit))
    assert certification_probability(every, LIGHT, (400,)) == 0.0
    dear = replace(sequence, costs=np.full_like(sequence.costs, light.fit.full_cost.sum()))
    assert certification_probability(dear, LIGHT, (400,)) == 0.0


def test_a_family_that_is_better_is_found() -> None:
    # The answer's length of run tells everything, the probabilities nothing.
    fit_table = draw(400, 2)
    rng = np.random.default_rng(3)
    shape = fit_table.correct.shape
    blind = replace(
        fit_table,
        mean_logprob=-rng.exponential(size=shape),
        mean_entropy=rng.exponential(size=shape),
        answer_codes=np.where(fit_table.correct, 0, 1 + np.arange(shape[1])),
    )
    found = choose(blind.as_fit(), 300, replace(LIGHT, families=("learned", "confidence")))
    assert found.comparison.verdict == "learned better"
    assert found.advised is not None
    assert found.advised.scorer.family == "learned"


# --- What is refused ------------------------------------------------------------------------------


def test_an_alpha_that_full_thinking_cannot_miss_is_refused(table: OpenQuestions) -> None:
    low = regraded(table, natural_correct=np.arange(150) < 15)
    with pytest.raises(CalibrationError, match="alpha must be below the full-thinking accuracy"):
        choose(low.as_fit(), 120, replace(LIGHT, alpha=0.1))


def test_no_fit_questions_are_refused(table: OpenQuestions) -> None:
    with pytest.raises(CalibrationError, match="no fit questions"):
        choose(table.take(np.zeros(150, dtype=bool)).as_fit(), 100, LIGHT)


@pytest.mark.parametrize(
    "change",
    [
        {"alpha": 0.0},
        {"delta": 1.0},
        {"serving": "telepathy"},
        {"families": ()},
        {"families": ("puma",)},
    ],
)
def test_impossible_settings_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CalibrationError, match=next(iter(change))):
        Settings(**change)


def test_costs_that_were_counted_otherwise_are_assessed_again() -> None:
    document = {"run": "sums", "alpha": 0.1, "delta": 0.05, "protocol": "deploy"}
    with pytest.raises(ProbeError, match=r"sums: .*cache_block.* assess again"):
        SettingsOverrides().settings({**document, "settings": {"cache_block": 32}})


def test_families_that_cannot_be_measured_are_refused(table: OpenQuestions) -> None:
    over = replace(table, trace_tokens=np.zeros(150, dtype=np.int64))
    with pytest.raises(CalibrationError, match="no family can be measured"):
        choose(over.as_fit(), 100, LIGHT)


# --- Where a server returned no log-probabilities -------------------------------------------------


def test_families_that_read_log_probabilities_alone_are_refused_there(table: OpenQuestions) -> None:
    silent = replace(table, entropy_source="none")
    with pytest.raises(CalibrationError, match=r"hold no log-probabilities .* entropy read them"):
        choose(silent.as_fit(), 120, Settings(alpha=0.15, families=("confidence", "entropy")))


def test_a_rule_whose_first_threshold_loses_too_many_is_not_advised() -> None:
    # Its rating looks beyond the limit of losses, where it would save.
    long = replace(draw(60, 4), trace_tokens=np.full(60, 10_000))
    right = np.broadcast_to(np.arange(60)[:, None] < 52, long.correct.shape).copy()
    known = regraded(long, correct=right, natural_correct=np.ones(60, dtype=bool))
    found = choose(known.as_fit(), 90, Settings(alpha=0.15, families=("fixed-budget",)))
    (tested,) = found.sequences
    assert tested.losses.min() == 8  # of 60; 7 of 90 are allowed
    assert Imitation.draw(found.fit, 90, found.settings).rate(tested).rating_pct > 0
    assert found.advised is None
    assert found.advised_point is None
