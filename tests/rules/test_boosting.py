"""Boosted trees: exported numbers against scikit-learn and against the stepper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stopadvisor.ground.errors import CalibrationError
from stopadvisor.rules import boosting
from stopadvisor.rules.boosting import BoostedModel, Tree, fit_boosted
from stopadvisor.rules.features import FEATURES, feature_array
from tests.populations import POPULATIONS
from tests.replay import replayed

FREE_FORM = POPULATIONS[3]


def rows(n: int, seed: int) -> tuple[Any, Any]:
    table = FREE_FORM.draw(n, np.random.default_rng(seed))
    return feature_array(table).reshape(-1, len(FEATURES)), table.correct.ravel()


def test_the_export_is_what_scikit_learn_fitted() -> None:
    # Recipe: HistGradientBoostingClassifier with the module's settings; decision_function on
    # fresh rows, which is the baseline plus one leaf value a tree.
    from sklearn.ensemble import HistGradientBoostingClassifier

    x, y = rows(300, 0)
    fresh, _ = rows(500, 1)
    reference = HistGradientBoostingClassifier(
        max_iter=boosting._N_TREES,
        max_leaf_nodes=boosting._MOST_LEAVES,
        min_samples_leaf=boosting._SMALLEST_LEAF,
        learning_rate=boosting._LEARNING_RATE,
        early_stopping=False,
        random_state=0,
    ).fit(x, y)
    ours = fit_boosted(x, y)
    assert len(ours.trees) == boosting._N_TREES
    values = [ours.intercept, *(value for tree in ours.trees for value in tree.value)]
    assert all((value * 2.0**36).is_integer() for value in values), "floats sum them exactly"
    np.testing.assert_allclose(ours.scores(fresh), reference.decision_function(fresh), atol=1e-9)


def loop_score(model: BoostedModel, x: list[float]) -> float:
    z = model.intercept
    for tree in model.trees:
        node = 0
        while tree.feature[node] >= 0:
            left = x[tree.feature[node]] <= tree.threshold[node]
            node = tree.left[node] if left else tree.right[node]
        z = z + tree.value[node]
    return z


def test_whole_tables_equal_a_walk_down_the_trees() -> None:
    x, y = rows(250, 2)
    model = fit_boosted(x, y)
    fresh, _ = rows(60, 3)
    # Put some values exactly on a threshold: at most means left.
    tree = model.trees[0]
    fresh[:20, tree.feature[0]] = tree.threshold[0]
    assert model.scores(fresh).tolist() == [loop_score(model, row) for row in fresh.tolist()]
    shaped = fresh.reshape(60, 10, -1)
    assert np.array_equal(model.scores(shaped), model.scores(fresh).reshape(60, 10))


def chain_tree(n_leaves: int) -> Tree:
    """One feature, cut at 0, 1, 2 …: leaf k holds what is at most k."""
    inner, leaves = n_leaves - 1, [0.1 * (k + 1) for k in range(n_leaves)]
    return Tree(
        (0,) * inner + (-1,) * n_leaves,
        tuple(float(k) for k in range(inner)) + (0.0,) * n_leaves,
        tuple(range(inner, 2 * inner)) + (0,) * n_leaves,
        (*range(1, inner), 2 * inner) + (0,) * n_leaves,
        (0.0,) * inner + tuple(leaves),
    )


@pytest.mark.parametrize("n_leaves", [2, 9, 20])
def test_all_rows_are_walked_as_one_is(n_leaves: int) -> None:
    model = BoostedModel(("run_length",), 0.25, (chain_tree(n_leaves),) * 2)
    values = np.arange(-2, n_leaves + 2, 0.5)[:, None]
    assert model.scores(values).tolist() == [loop_score(model, row) for row in values.tolist()]


def test_a_lone_leaf_is_a_tree() -> None:
    model = BoostedModel(("run_length",), 0.5, (Tree((-1,), (0.0,), (0,), (0,), (0.25,)),))
    assert model.scores(np.zeros((3, 1))).tolist() == [0.75] * 3


@pytest.mark.parametrize("schedule", [tuple(range(10)), (1, 3, 6, 9)])
def test_the_stepper_gives_the_tables_scores_bit_for_bit(schedule: tuple[int, ...]) -> None:
    table = FREE_FORM.draw(220, np.random.default_rng(4))
    features, live = feature_array(table, schedule), ~table.ended[:, schedule]
    model = fit_boosted(features[live], table.correct[:, schedule][live])
    few = table.take(np.arange(60))
    expected = model.scores(features[:60])
    assert replayed(few, "learned-boosted", schedule, model) == [
        row[: int(k)].tolist() for row, k in zip(expected, live[:60].sum(axis=1), strict=True)
    ]


def test_fitting_twice_gives_the_same_trees() -> None:
    x, y = rows(220, 5)
    assert fit_boosted(x, y) == fit_boosted(x, y)


def test_one_class_teaches_nothing() -> None:
    with pytest.raises(CalibrationError, match="both right and wrong"):
        fit_boosted(np.zeros((30, len(FEATURES))), np.ones(30, dtype=bool))


def test_trees_that_cannot_be_read_back_are_no_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier

    x, y = rows(220, 6)
    monkeypatch.setattr(
        HistGradientBoostingClassifier, "decision_function", lambda _, rows: np.ones(len(rows))
    )
    with pytest.raises(CalibrationError, match="cannot be exported faithfully"):
        fit_boosted(x, y)
