"""Gradient-boosted trees on the prefix-observable features, as plain lists of numbers.

Fitted with scikit-learn, exported as five lists a tree, evaluated here (and by the stepper)
without it.  The exported trees are what is certified, so nothing depends on scikit-learn later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stopadvisor.ground.arrays import BoolArray, FloatArray
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.rules.features import FEATURES

__all__ = ["BoostedModel", "Tree", "fit_boosted"]

_N_TREES = 40
_MOST_LEAVES = 8
_SMALLEST_LEAF = 20
_LEARNING_RATE = 0.1


@dataclass(frozen=True)
class Tree:
    """One regression tree; node 0 is the root, feature -1 marks a leaf."""

    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    """Go left when the feature is at most this."""
    left: tuple[int, ...]
    right: tuple[int, ...]
    value: tuple[float, ...]
    """Added to the score at a leaf."""


@dataclass(frozen=True)
class BoostedModel:
    """A sum of trees on the log-odds scale."""

    features: tuple[str, ...]
    intercept: float
    trees: tuple[Tree, ...]

    def scores(self, features: NDArray[np.float64]) -> FloatArray:
        """Log-odds of being right; `features` has shape (..., n_features)."""
        flat = features.reshape(-1, features.shape[-1])
        columns = [np.ascontiguousarray(flat[:, k]) for k in range(flat.shape[1])]
        z = np.full(len(flat), self.intercept)
        for tree in self.trees:
            z = z + _leaf_values(tree, columns)
        return z.reshape(features.shape[:-1])


def _leaf_values(tree: Tree, columns: list[FloatArray]) -> FloatArray:
    """What a tree adds to each row, by a walk of all rows at once."""
    out = np.empty(len(columns[0]))
    waiting = [(0, np.arange(len(out)))]
    while waiting:
        node, rows = waiting.pop()
        if tree.feature[node] < 0:
            out[rows] = tree.value[node]
            continue
        goes_left = columns[tree.feature[node]][rows] <= tree.threshold[node]
        waiting += [(tree.left[node], rows[goes_left]), (tree.right[node], rows[~goes_left])]
    return out


def fit_boosted(
    features: FloatArray, correct: BoolArray, names: Sequence[str] = FEATURES
) -> BoostedModel:
    """Fit boosted trees and export them.

    `features` have shape (n_rows, n_features), `correct` (n_rows,); `names` are those of the
    features.

    Raises
    ------
    CalibrationError
        One class of labels only, or a scikit-learn whose trees cannot be read.

    Notes
    -----
    The paper reports boosting slightly ahead of logistic regression on GSM8K (Appendix
    "Classifier Class Comparison").
    """
    if correct.all() or not correct.any():
        raise CalibrationError("boosting needs both right and wrong forced answers")
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits  # a dependency of scikit-learn

    model = HistGradientBoostingClassifier(
        max_iter=_N_TREES,
        max_leaf_nodes=_MOST_LEAVES,
        min_samples_leaf=_SMALLEST_LEAF,
        learning_rate=_LEARNING_RATE,
        early_stopping=False,
        random_state=0,
    )
    # Its threads spin while they wait for each other: on a busy machine a fit of 0.1 s took 19 s.
    with threadpool_limits(limits=1, user_api="openmp"):
        model.fit(features, correct)
        head = features[:64]
        fitted = model.decision_function(head)
    trees = []
    for (predictor,) in model._predictors:  # one tree an iteration: the task is binary
        nodes = predictor.nodes
        leaf = nodes["is_leaf"].astype(bool)
        trees.append(
            Tree(
                tuple(np.where(leaf, -1, nodes["feature_idx"].astype(np.int64)).tolist()),
                tuple(np.where(leaf, 0.0, nodes["num_threshold"]).tolist()),
                tuple(np.where(leaf, 0, nodes["left"].astype(np.int64)).tolist()),
                tuple(np.where(leaf, 0, nodes["right"].astype(np.int64)).tolist()),
                tuple(_rounded(np.where(leaf, nodes["value"], 0.0)).tolist()),
            )
        )
    (intercept,) = _rounded(np.ravel(model._baseline_prediction)).tolist()
    exported = BoostedModel(tuple(names), intercept, tuple(trees))
    # The trees are read from private attributes: make sure that they are what was fitted.
    if not np.allclose(exported.scores(head), fitted, atol=1e-6):
        raise CalibrationError("this scikit-learn's boosted trees cannot be exported faithfully")
    return exported


def _rounded(values: FloatArray) -> FloatArray:
    """Round to multiples of 2**-36, which floats sum exactly: any reader may add in any order."""
    return np.rint(values * 2.0**36) / 2.0**36
