"""The joint choice on fit questions: what it sees, what it takes, and how it compares."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stopadvisor.assessment import choice as module
from stopadvisor.assessment.choice import Choice, Settings, choose, fewest_labels, first_useful_risk
from stopadvisor.assessment.sequences import FitData, build_sequence, candidate_schedules
from stopadvisor.errors import CalibrationError
from stopadvisor.probes.outcomes import FitQuestions, OpenQuestions
from stopadvisor.rules.costs import REGIMES, full_counts, stopped_counts
from stopadvisor.rules.families import LEARNED_FAMILIES, SCALAR_FAMILIES
from stopadvisor.stats.bounds import Bound, max_losses, power
from tests.populations import POPULATIONS, regraded, renamed

FREE_FORM = POPULATIONS[3]
LIGHT = Settings(alpha=0.15, families=("learned", "confidence", "entropy"))


def draw(n: int, seed: int) -> OpenQuestions:
    return renamed(FREE_FORM.draw(n, np.random.default_rng(seed)), "f")


@pytest.fixture(scope="module")
def table() -> OpenQuestions:
    return draw(150, 0)


@pytest.fixture(scope="module")
def light(table: OpenQuestions) -> Choice:
    return choose(table.as_fit(), 120, LIGHT)


def fit_data(table: OpenQuestions, settings: Settings) -> FitData:
    return FitData.build(
        table.as_fit(),
        serving=settings.serving,
        weights=settings.weights,
        cache_block=settings.cache_block,
        most_blocks=1000,
    )


# --- What a choice sees ---------------------------------------------------------------------------


def test_a_choice_is_given_no_calibration_question() -> None:
    # Of calibration it learns a number, so that no outcome can reach what is tested later.
    parameters = inspect.signature(choose, eval_str=True).parameters
    assert {name: p.annotation for name, p in parameters.items()} == {
        "fit_table": FitQuestions,
        "n_calibration": int,
        "settings": Settings,
    }


def test_the_same_fit_questions_give_the_same_choice(table: OpenQuestions, light: Choice) -> None:
    again = choose(table.as_fit(), 120, LIGHT)
    for one, other in zip(light.sequences, again.sequences, strict=True):
        assert one.scorer == other.scorer
        assert np.array_equal(one.thresholds, other.thresholds)
    assert (again.verdict, again.delta_saving_pp) == (light.verdict, light.delta_saving_pp)


# --- What it takes --------------------------------------------------------------------------------


@pytest.mark.parametrize("serving", REGIMES)
def test_each_side_is_the_cheapest_candidate_at_what_calibration_could_certify(
    table: OpenQuestions, serving: Any
) -> None:
    settings = replace(LIGHT, serving=serving)
    found = choose(table.as_fit(), 120, settings)
    limit = max_losses(120, 0.15, 0.025) / 120 * 150
    fit = fit_data(table, settings)
    for sequence, families in zip(
        found.sequences, (("learned",), ("confidence", "entropy")), strict=True
    ):
        cheapest = float("inf")
        for family in families:
            for schedule in candidate_schedules(table):
                other = build_sequence(fit, family, schedule)
                assert other is not None
                cost = np.inf
                for losses, at in zip(other.losses.tolist(), other.costs.tolist(), strict=True):
                    if losses > limit:
                        break
                    cost = at
                cheapest = min(cheapest, cost)
        assert float(sequence.costs[sequence.index(limit)]) == cheapest
        assert sequence.scorer.family in families


def test_boosting_joins_over_the_learned_schedule() -> None:
    fit_table = draw(210, 1)
    settings = Settings(alpha=0.15, families=("learned", "learned-boosted"))
    fit = fit_data(fit_table, settings)
    found = module._candidates(fit, settings, 20.0)
    families = [c.scorer.family for c in found]
    assert families.count("learned-boosted") == 1
    linear = min(
        (c for c in found if c.scorer.family == "learned"),
        key=lambda c: float(c.costs[c.index(20.0)]),
    )
    assert found[-1].scorer.schedule == linear.scorer.schedule


def test_the_point_is_the_chain_measured_at_its_position(
    table: OpenQuestions, light: Choice
) -> None:
    limit = max_losses(120, 0.15, 0.025) / 120 * 150
    for sequence, point in zip(light.sequences, (light.learned, light.scalar), strict=True):
        assert point is not None
        position = sequence.index(limit)
        stops = sequence.curve.stops(position)
        lost = right = 0
        for i, stop in enumerate(stops.tolist()):
            ends = stop == len(sequence.scorer.schedule)
            correct = table.full_correct[i]
            if not ends:
                correct = table.correct[i, sequence.scorer.schedule[stop]]
            right += int(correct)
            lost += int(table.full_correct[i] and not correct)
        cost = stopped_counts(table, sequence.scorer.schedule, "kv-fork").weighed(LIGHT.weights)
        total = cost[np.arange(150), stops].sum()
        full = full_counts(table).weighed(LIGHT.weights).sum()
        assert point.fit_risk == lost / 150
        assert point.fit_accuracy == right / 150
        assert point.fit_total_saving_pct == pytest.approx(100 * (1 - total / full))
        assert point.schedule == tuple(table.budgets[list(sequence.scorer.schedule)].tolist())


def test_comparable_families_leave_it_to_the_simpler_rule(light: Choice) -> None:
    assert light.verdict in ("comparable", "learned better", "scalar better")
    assert light.advised is not None
    expected_learned = light.verdict == "learned better"
    assert light.advised.scorer.is_learned == expected_learned


def test_delta_is_shared_by_the_sides_asked_for() -> None:
    assert Settings(delta=0.05).sequence_delta() == 0.025
    assert Settings(delta=0.05, families=("confidence", "entropy")).sequence_delta() == 0.05
    assert Settings(delta=0.05, families=("learned", "learned-text")).sequence_delta() == 0.05


def test_too_few_calibration_questions_are_infeasible(table: OpenQuestions) -> None:
    found = choose(table.as_fit(), 15, LIGHT)  # 23 could exclude 0.15 at 0.025, with no loss at all
    assert found.verdict == "inconclusive"
    assert found.advised is None
    assert found.probability == 0.0
    assert found.learned is not None
    assert not found.learned.feasible


def test_the_chance_is_the_binomial_at_the_first_useful_threshold(light: Choice) -> None:
    risks = [first_useful_risk(light.fit, sequence) for sequence in light.sequences]
    chances = [power(120, 0.15, 0.025, risk) for risk in risks if risk is not None]
    assert light.probability == max(chances)


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("bound", ["exact", "hoeffding"])
def test_fewer_labels_than_the_fewest_certify_nothing(
    table: OpenQuestions, light: Choice, conditional: bool, bound: Bound
) -> None:
    found = replace(light, settings=replace(LIGHT, conditional=conditional, bound=bound))
    fewest = fewest_labels(found)
    counted = math.floor(fewest * (found.full_accuracy if conditional else 1.0))
    assert max_losses(counted, 0.15, 0.025, bound) >= 0
    assert max_losses(counted - 1, 0.15, 0.025, bound) < 0
    assert choose(table.as_fit(), counted - 1, replace(LIGHT, bound=bound)).probability == 0.0


def test_a_grid_of_thresholds_shares_the_error_probability(table: OpenQuestions) -> None:
    grid = replace(LIGHT, multiplicity="finite-grid")
    assert grid.test_delta(100) == grid.sequence_delta() / 100
    assert LIGHT.test_delta(100) == LIGHT.sequence_delta()
    found = choose(table.as_fit(), 45, grid)  # even no loss at all excludes nothing at delta / 100
    assert choose(table.as_fit(), 45, LIGHT).probability > 0
    assert found.probability == 0.0
    assert found.advised is None


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
    assert found.verdict == "learned better"
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
        {"bound": "guess"},
        {"multiplicity": "none"},
        {"families": ()},
        {"families": ("deer",)},
    ],
)
def test_impossible_settings_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CalibrationError, match=next(iter(change))):
        Settings(**change)


def test_families_that_cannot_be_measured_are_refused(table: OpenQuestions) -> None:
    over = replace(table, trace_tokens=np.zeros(150, dtype=np.int64))
    with pytest.raises(CalibrationError, match="no family can be measured"):
        choose(over.as_fit(), 100, LIGHT)


def test_every_family_name_is_known() -> None:
    for family in (*LEARNED_FAMILIES, *SCALAR_FAMILIES):
        Settings(families=(family,))


# --- Where a server returned no log-probabilities -------------------------------------------------


def test_without_log_probabilities_only_texts_are_read(table: OpenQuestions) -> None:
    silent = replace(
        table,
        entropy_source="none",
        mean_logprob=np.zeros_like(table.mean_logprob),
        mean_entropy=np.zeros_like(table.mean_entropy),
    )
    found = choose(silent.as_fit(), 120, Settings(alpha=0.15))
    assert found.settings.families == ("learned-text", "run-stability")
    assert {sequence.scorer.family for sequence in found.sequences} <= set(found.settings.families)
    assert found.settings.sequence_delta() == Settings().delta / 2


def test_families_that_read_log_probabilities_alone_are_refused_there(table: OpenQuestions) -> None:
    silent = replace(table, entropy_source="none")
    with pytest.raises(CalibrationError, match=r"hold no log-probabilities .* entropy read them"):
        choose(silent.as_fit(), 120, Settings(alpha=0.15, families=("confidence", "entropy")))
