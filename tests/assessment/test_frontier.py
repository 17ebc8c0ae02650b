"""Frontiers: by hand, as a single rule is measured, and what pictures show of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopadvisor.assessment.choice import Settings
from stopadvisor.assessment.frontier import (
    Curve,
    Frontier,
    accuracy_at_cost,
    displayed,
    fixed_accuracy,
    fixed_budget_frontier,
    gains,
    grid_frontier,
    sequence_frontier,
    served_budget_frontier,
)
from stopadvisor.assessment.sequences import FitData
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.paper.protocol import first_stops
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.trigger import ListedTrigger
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.rules.outcomes import measure
from stopadvisor.runs.sources import open_source
from tests.material import make_run
from tests.populations import sequence

FIXED = Frontier(
    np.array([0.0, 10.0, 20.0]), np.array([5.0, 15.0, 35.0]), np.array([0.2, 0.6, 0.7])
)


@pytest.mark.parametrize(
    ("how", "accuracy"),
    # Costs below the range, on a point, between two points (nearer the first), beyond the range.
    [
        pytest.param("linear", [0.2, 0.6, 0.63, 0.7], id="linear"),
        pytest.param("nearest", [0.2, 0.6, 0.6, 0.7], id="nearest"),
        pytest.param("floor", [0.2, 0.6, 0.6, 0.7], id="floor"),
        pytest.param("ceiling", [0.2, 0.6, 0.7, 0.7], id="ceiling"),
    ],
)
def test_accuracy_of_fixed_budgets_at_a_cost(how: str, accuracy: list[float]) -> None:
    found = fixed_accuracy(FIXED, np.array([1.0, 15.0, 21.0, 99.0]), how)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, accuracy)


def test_gain_is_the_height_above_fixed_budgets() -> None:
    rule = Frontier(np.array([0.9, 0.5]), np.array([25.0, 10.0]), np.array([0.8, 0.3]))
    np.testing.assert_allclose(gains(rule, FIXED), [0.8 - 0.65, 0.3 - 0.4])


def test_costs_that_descend_are_refused() -> None:
    backwards = Frontier(FIXED.at, FIXED.cost[::-1], FIXED.accuracy)
    with pytest.raises(CalibrationError, match="must not descend"):
        fixed_accuracy(backwards, np.array([1.0]))


@given(st.integers(0, 2**32 - 1))
def test_grid_frontier_is_what_each_threshold_stops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.random((30, 4)).round(1)
    cost, correct = np.cumsum(rng.random((30, 4)), axis=1), rng.random((30, 4)) < 0.5
    thresholds = np.unique(rng.random(6).round(1))
    found = grid_frontier(scores, cost, correct, thresholds)
    for k, threshold in enumerate(thresholds):
        stops = first_stops(scores, threshold)[:, None]
        assert found.cost[k] == pytest.approx(np.take_along_axis(cost, stops, 1).mean())
        assert found.accuracy[k] == pytest.approx(np.take_along_axis(correct, stops, 1).mean())


def test_fixed_budgets_are_column_means() -> None:
    cost, correct = np.array([[1.0, 2.0], [3.0, 6.0]]), np.array([[True, True], [False, True]])
    found = fixed_budget_frontier(cost, correct, np.array([0, 8]))
    assert found.at.tolist() == [0, 8]
    assert found.cost.tolist() == [2, 4]
    assert found.accuracy.tolist() == [0.5, 1]


# --- As served ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> OpenQuestions:
    return open_source(make_run(tmp_path_factory.mktemp("frontier") / "run", 200)).table.unseal()


def _fit(table: OpenQuestions) -> FitData:
    return FitData.build(table.as_fit(), Settings())


@pytest.mark.parametrize("reference", ["natural", "last-checkpoint"])
@pytest.mark.parametrize("family", ["learned", "entropy", FIXED_BUDGET])
def test_chain_frontier_is_what_each_rule_is_measured_to_do(
    table: OpenQuestions, reference: str, family: str
) -> None:
    fit = _fit(table.with_reference(reference))  # type: ignore[arg-type]
    positions = tuple(table.budgets[[0, 3, table.n_checkpoints - 1]].tolist())
    rule = sequence(fit, family, ListedTrigger(positions))
    found = sequence_frontier(rule)
    costs = fit.costs(rule.scorer, rule.view)
    for k in (0, rule.thresholds.size // 2, rule.thresholds.size - 1):
        outcome = measure(rule.view, rule.curve.stops(k), costs, fit.full_cost)
        assert found.accuracy[k] == pytest.approx(outcome.accuracy)
        saving = 100 * (1 - found.cost[k] / fit.full_cost.mean())
        assert saving == pytest.approx(outcome.total_saving_pct)


def test_a_fixed_budget_asks_once_and_lets_short_traces_end(table: OpenQuestions) -> None:
    fit = _fit(table)
    found = served_budget_frontier(fit)
    assert table.natural_tokens is not None
    for column, budget in enumerate(table.budgets):
        stopped = budget + table.probe_tokens[:, column] + table.suffix_tokens
        ended = table.trace_tokens + table.natural_tokens
        over = table.trace_tokens <= budget
        assert found.cost[column] == pytest.approx(
            (table.prompt_tokens + np.where(over, ended, stopped)).mean()
        )
        assert found.accuracy[column] == pytest.approx(table.correct_online[:, column].mean())


def test_the_last_budget_of_an_archive_is_full_thinking(table: OpenQuestions) -> None:
    fit = _fit(table.with_reference("last-checkpoint"))
    found = served_budget_frontier(fit)
    assert found.accuracy[-1] == pytest.approx(fit.table.full_correct.mean())
    suffix = fit.table.suffix_tokens * (~fit.table.ended[:, -1]).mean()
    assert found.cost[-1] == pytest.approx(fit.full_cost.mean() + suffix)


def test_positions_of_their_own_give_the_common_ones(table: OpenQuestions) -> None:
    # The second question was not probed at the fourth budget: nothing can be said of it there.
    last = table.n_checkpoints
    columns = np.tile(np.arange(last), (table.n_questions, 1))
    longest = int(np.argmax(table.trace_tokens))
    columns[longest] = [*range(3), *range(4, last), -1]
    own = table.at(columns)
    found = served_budget_frontier(_fit(own))
    whole = served_budget_frontier(_fit(table))
    kept = [k for k in range(last) if k != 3 and (table.trace_tokens > table.budgets[k]).any()]
    assert table.trace_tokens[longest] > table.budgets[3]
    assert found.at.tolist() == table.budgets[kept].tolist()
    np.testing.assert_allclose(found.cost, whole.cost[kept])
    np.testing.assert_allclose(found.accuracy, whole.accuracy[kept])


CURVE = Curve("fixed budget", (0.0, 8.0, 16.0), (10.0, 50.0, 90.0), (0.2, 0.6, 0.7))


@pytest.mark.parametrize(
    ("cost", "accuracy"),
    [(9.9, None), (10.0, 0.2), (30.0, 0.4), (70.0, 0.65), (90.0, 0.7), (90.1, None)],
)
def test_accuracy_between_budgets_is_read_off_the_line(cost: float, accuracy: float | None) -> None:
    found = accuracy_at_cost(CURVE, cost)
    assert found == (None if accuracy is None else pytest.approx(accuracy))
    level = Curve("fixed budget", CURVE.at, (*CURVE.cost[:2], CURVE.cost[1]), CURVE.accuracy)
    assert accuracy_at_cost(level, 30.0) == pytest.approx(0.4)
    mixed = Curve("fixed budget", CURVE.at, CURVE.cost[::-1], CURVE.accuracy)
    assert accuracy_at_cost(mixed, cost) is None  # costs out of order


def test_no_confidence_is_shown_as_more_than_1() -> None:
    above_all = np.array([1.0, -0.5])  # of log-probabilities
    assert displayed("confidence", above_all).tolist() == [1.0, np.exp(-0.5)]
    assert displayed("run-stability", np.array([4.0, 3.0])).tolist() == [4.0, 3.0]
