"""What a choice looks like: curves, stops, savings by risk target."""

from __future__ import annotations

import numpy as np
import pytest

from stopadvisor.assessment.frontier import Curve, accuracy_at_cost, displayed

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
