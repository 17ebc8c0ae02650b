"""Fitted scores: against scikit-learn, and no question scores itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopadvisor.ground.constants import N_FOLDS
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.rules.families import display_threshold
from stopadvisor.rules.features import FEATURES, feature_array
from stopadvisor.rules.scores import fit_logistic, out_of_fold, paper_folds, scalar_scores
from tests.populations import POPULATIONS

FREE_FORM = POPULATIONS[3]


def test_an_unknown_family_is_refused() -> None:
    table = FREE_FORM.draw(2, np.random.default_rng(0))
    with pytest.raises(CalibrationError, match="got 'puma'"):
        scalar_scores("puma", table)


# --- Logistic regression --------------------------------------------------------------------------


def rows(seed: int, n: int = 120) -> tuple[Any, Any]:
    table = FREE_FORM.draw(n, np.random.default_rng(seed))
    return feature_array(table).reshape(-1, len(FEATURES)), table.correct.ravel()


@pytest.mark.parametrize("seed", range(2))
def test_newton_reaches_scikit_learns_optimum(seed: int) -> None:
    # Recipe: StandardScaler, then LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-12).
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    x, y = rows(seed)
    ours = fit_logistic(x, y)
    scaler = StandardScaler().fit(x)
    reference = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-12, max_iter=1000)
    reference.fit(scaler.transform(x), y)
    np.testing.assert_allclose(ours.mean, scaler.mean_, rtol=1e-12)
    np.testing.assert_allclose(ours.scale, scaler.scale_, rtol=1e-12)
    np.testing.assert_allclose(ours.coef, reference.coef_[0], rtol=1e-7, atol=1e-8)
    assert ours.intercept == pytest.approx(reference.intercept_[0], rel=1e-7, abs=1e-8)
    np.testing.assert_allclose(
        ours.scores(x), reference.decision_function(scaler.transform(x)), rtol=1e-6, atol=1e-7
    )


def test_lbfgs_is_the_papers_pipeline() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = rows(9)
    reference = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, max_iter=1000)).fit(x, y)
    ours = fit_logistic(x, y, solver="lbfgs").scores(x)
    np.testing.assert_allclose(ours, reference.decision_function(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("solver", ["newton", "lbfgs"])
def test_a_constant_column_gets_no_weight_and_no_division(solver: Any) -> None:
    x, y = rows(1)
    x = x.copy()
    x[:, 3] = 0.1 + 0.2
    model = fit_logistic(x, y, solver=solver)
    assert model.scale[3] == 1.0
    assert model.coef[3] == pytest.approx(0, abs=1e-9)


def test_separable_classes_have_a_finite_optimum() -> None:
    x = np.linspace(-1, 1, 40)[:, None] * np.ones((40, len(FEATURES)))
    model = fit_logistic(x, x[:, 0] > 0)
    assert np.isfinite(model.coef).all()
    assert ((model.scores(x) > 0) == (x[:, 0] > 0)).all()


@pytest.mark.parametrize("labels", [[True] * 5, [False] * 5, []])
def test_one_class_teaches_nothing(labels: list[bool]) -> None:
    with pytest.raises(CalibrationError, match="both right and wrong"):
        fit_logistic(np.zeros((len(labels), len(FEATURES))), np.array(labels, dtype=bool))


# --- Out-of-fold ----------------------------------------------------------------------------------


def test_the_papers_folds_are_group_k_folds() -> None:
    # Recipe: GroupKFold(5) of scikit-learn >= 1.9 over one group per question.
    from sklearn.model_selection import GroupKFold

    n = 23
    found = np.empty(n, dtype=int)
    for fold, (_, held) in enumerate(GroupKFold(N_FOLDS).split(np.zeros(n), groups=np.arange(n))):
        found[held] = fold
    assert found.tolist() == paper_folds(n).tolist()


def test_no_question_scores_itself() -> None:
    table = FREE_FORM.draw(60, np.random.default_rng(2))
    features, folds = feature_array(table), np.arange(60) % N_FOLDS
    before = out_of_fold(features, table.correct, folds)
    changed = table.correct.copy()
    changed[folds == 3] = ~changed[folds == 3]  # their labels cannot reach their own scores
    after = out_of_fold(features, changed, folds)
    assert np.array_equal(before[folds == 3], after[folds == 3])
    assert not np.array_equal(before[folds == 1], after[folds == 1])


# --- Display and the stepper ----------------------------------------------------------------------


@given(st.floats(-800, 800))
def test_displayed_thresholds_keep_their_order_and_never_overflow(linear: float) -> None:
    shown = display_threshold("learned", linear)
    assert 0 <= shown <= 1
    assert display_threshold("learned", linear + 1) >= shown
    assert display_threshold("entropy", linear) == linear
    if linear <= 0:
        assert display_threshold("confidence", linear) == math.exp(linear)
