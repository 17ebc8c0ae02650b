"""What a choice looks like: curves, stops, savings by risk target."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stopadvisor.assessment.choice import Choice, Settings, choose
from stopadvisor.assessment.diagnostics import (
    Curve,
    accuracy_at_cost,
    displayed,
    fit_curves,
    fixed_curve,
    savings_by_alpha,
)
from stopadvisor.assessment.forecasts import fit_limit
from stopadvisor.ground.arrays import numbers
from stopadvisor.rules.families import FIXED_BUDGET
from tests.populations import POPULATIONS

FIXED = Curve("fixed budget", (0.0, 8.0, 16.0), (10.0, 50.0, 90.0), (0.2, 0.6, 0.7))


@pytest.mark.parametrize(
    ("cost", "accuracy"), [(10.0, 0.2), (30.0, 0.4), (70.0, 0.65), (90.0, 0.7)]
)
def test_accuracy_between_budgets_is_read_off_the_line(cost: float, accuracy: float) -> None:
    assert accuracy_at_cost(FIXED, cost) == pytest.approx(accuracy)


def test_no_confidence_is_shown_as_more_than_1() -> None:
    above_all = np.array([1.0, -0.5])  # of log-probabilities
    assert displayed("confidence", above_all).tolist() == [1.0, np.exp(-0.5)]
    assert displayed("run-stability", np.array([4.0, 3.0])).tolist() == [4.0, 3.0]


@pytest.mark.parametrize("cost", [9.9, 90.1])
def test_outside_the_budgets_there_is_none(cost: float) -> None:
    assert accuracy_at_cost(FIXED, cost) is None


def test_costs_out_of_order_give_none() -> None:
    mixed = Curve("fixed budget", FIXED.at, FIXED.cost[::-1], FIXED.accuracy)
    assert accuracy_at_cost(mixed, 50.0) is None


# --- Of a choice ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def choice() -> Choice:
    table = POPULATIONS[3].draw(150, np.random.default_rng(0))
    families = ("learned", "learned-keeps", "confidence", "agreement", FIXED_BUDGET)
    return choose(table.as_fit(), 150, Settings(alpha=0.15, families=families))


def test_each_rule_that_is_compared_has_a_curve(choice: Choice) -> None:
    curves = fit_curves(choice.fit, choice.compared)
    assert [c.name for c in curves] == [s.scorer.family for s in choice.compared]
    for curve, sequence in zip(curves, choice.compared, strict=True):
        full = choice.fit.full_cost.sum()
        np.testing.assert_allclose(curve.cost, 100 * sequence.costs / full)
        assert len(curve.at) == len(curve.cost) == len(curve.accuracy)
        if sequence.scorer.model is not None or sequence.scorer.family == "confidence":
            assert all(at is not None and 0 <= at <= 1 for at in curve.at[1:])
        else:
            assert curve.at == numbers(sequence.thresholds)
    fixed = fixed_curve(choice.fit)
    assert list(fixed.at) == list(POPULATIONS[3].budgets)


def test_savings_by_alpha_are_those_of_each_rule_at_its_limit(choice: Choice) -> None:
    found = savings_by_alpha(choice)
    assert 0.15 in found.alphas
    assert list(found.savings) == list(dict.fromkeys(s.scorer.family for s in choice.compared))
    full = float(choice.fit.full_cost.sum())
    for sequence in choice.compared:
        for alpha, saving in zip(found.alphas, found.savings[sequence.scorer.family], strict=True):
            settings = replace(choice.settings, alpha=alpha)
            index = sequence.index(fit_limit(150, 150, settings))
            if index < 0:
                assert saving is None
            else:
                assert saving == pytest.approx(100 * (1 - sequence.costs[index] / full))
