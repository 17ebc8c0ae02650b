"""Curves on fit questions: fixed budgets at the cost of another rule, in the range they cover."""

from __future__ import annotations

import numpy as np
import pytest

from stopadvisor.assessment.diagnostics import Curve, accuracy_at_cost

FIXED = Curve(
    "fixed budget", np.array([0.0, 8, 16]), np.array([10.0, 50, 90]), np.array([0.2, 0.6, 0.7])
)


@pytest.mark.parametrize(
    ("cost", "accuracy"),
    [(10.0, 0.2), (30.0, 0.4), (70.0, 0.65), (90.0, 0.7)],
)
def test_accuracy_between_budgets_is_read_off_the_line(cost: float, accuracy: float) -> None:
    assert accuracy_at_cost(FIXED, cost) == pytest.approx(accuracy)


@pytest.mark.parametrize("cost", [None, 9.9, 90.1])
def test_outside_the_budgets_there_is_none(cost: float | None) -> None:
    assert accuracy_at_cost(FIXED, cost) is None


def test_costs_out_of_order_give_none() -> None:
    mixed = Curve("fixed budget", FIXED.at, FIXED.cost[::-1], FIXED.accuracy)
    assert accuracy_at_cost(mixed, 50.0) is None
