"""Reliability: ECE and Brier by hand and against scikit-learn; AUROC likewise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, roc_auc_score

from stopadvisor.ground.errors import CalibrationError
from stopadvisor.stats.reliability import auroc, reliability


def test_bins_by_hand() -> None:
    found = reliability(np.array([0.05, 0.95, 0.85, 1.0]), np.array([False, True, False, True]))
    assert found.low == pytest.approx([0.0, 0.8, 0.9])
    assert found.high == pytest.approx([0.1, 0.9, 1.0])
    assert found.count == (1, 1, 2)
    assert found.predicted == pytest.approx([0.05, 0.85, 0.975])
    assert found.observed == pytest.approx([0, 0, 1])
    assert found.ece == pytest.approx((0.05 + 0.85 + 2 * 0.025) / 4)
    assert found.brier == pytest.approx((0.05**2 + 0.05**2 + 0.85**2) / 4)


def test_a_calibrated_chance_has_no_error_but_noise() -> None:
    rng = np.random.default_rng(0)
    chance = rng.random(200_000)
    found = reliability(chance, rng.random(200_000) < chance)
    assert found.ece < 0.01
    assert found.brier == pytest.approx(1 / 6, abs=0.003)  # the mean of p(1 - p)


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1))
def test_agrees_with_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chance = rng.random((20, 3)).round(1)
    outcome = rng.random((20, 3)) < 0.5
    outcome[0, :2] = [True, False]
    found = reliability(chance, outcome)
    assert found.brier == pytest.approx(brier_score_loss(outcome.ravel(), chance.ravel()))
    assert auroc(chance, outcome) == pytest.approx(roc_auc_score(outcome.ravel(), chance.ravel()))


def test_ranks_by_hand() -> None:
    scores = np.array([0.2, 0.5, 0.5])
    assert auroc(scores, np.array([False, True, False])) == 0.75
    assert auroc(scores, np.array([True, False, True])) == 0.25
    assert reliability(np.array([0.0, 1.0]), np.array([False, True])).ece == 0.0


def test_what_cannot_be_said_is_not_said() -> None:
    assert auroc(np.array([0.1, 0.9]), np.array([True, True])) is None
    assert auroc(np.array([0.1, 0.9]), np.array([False, False])) is None
    for chance in ([], [1.2], [-0.2], [float("nan")]):
        with pytest.raises(CalibrationError, match="probabilities in 0 … 1"):
            reliability(np.array(chance), np.zeros(len(chance), bool))
