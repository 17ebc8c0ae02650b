"""Classes of classifiers for the learned rule, scored out of fold: audit only.

Logistic regression, random forest, gradient-boosted trees and a small neural network, with the
settings of the paper's published scripts.  Policies hold logistic regression or this package's own
boosted trees only; these figures show what another class would have gained.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.constants import LOGISTIC_C, LOGISTIC_MAX_ITER
from stopadvisor.ground.errors import CalibrationError

__all__ = ["CLASSIFIERS", "Classifier", "classify_out_of_fold"]

Classifier = Literal["logistic", "random-forest", "gradient-boosting", "mlp"]
CLASSIFIERS: tuple[Classifier, ...] = get_args(Classifier)

_SEED = 42


def classify_out_of_fold(
    kind: Classifier, features: NDArray[np.float64], correct: BoolArray, folds: IntArray
) -> FloatArray:
    """Probability of being right, by a classifier that never saw the question.

    `features` have shape (n_questions, n_checkpoints, n_features), `correct` and what is returned
    (n_questions, n_checkpoints), `folds` (n_questions,).

    Raises CalibrationError: a training part holds labels of one class only.

    Paper, Appendix "Classifier Class Comparison"; seed 42 as in its reproducibility manifest, the
    sizes from its published scripts.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits  # a dependency of scikit-learn

    probability = np.empty(correct.shape)
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # A network that stops at its last iteration is still the one the paper reports.
        warnings.simplefilter("ignore", ConvergenceWarning)
        for fold in np.unique(folds):
            held = folds == fold
            labels = correct[~held].ravel()
            if labels.size == 0 or labels.all() or not labels.any():
                raise CalibrationError(
                    "a classifier needs both right and wrong forced answers in each training part"
                )
            train = features[~held].reshape(-1, features.shape[-1])
            scaler = StandardScaler().fit(train)
            model = _unfitted(kind).fit(scaler.transform(train), labels)
            flat = scaler.transform(features[held].reshape(-1, features.shape[-1]))
            probability[held] = model.predict_proba(flat)[:, 1].reshape(-1, correct.shape[1])
    return probability


def _unfitted(kind: Classifier) -> Any:
    if kind == "logistic":
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(C=LOGISTIC_C, max_iter=LOGISTIC_MAX_ITER)
    if kind == "random-forest":
        from sklearn.ensemble import RandomForestClassifier

        return RandomForestClassifier(n_estimators=100, max_depth=8, random_state=_SEED)
    if kind == "gradient-boosting":
        from sklearn.ensemble import GradientBoostingClassifier

        return GradientBoostingClassifier(n_estimators=100, max_depth=4, random_state=_SEED)
    if kind == "mlp":
        from sklearn.neural_network import MLPClassifier

        return MLPClassifier(hidden_layer_sizes=(32, 16), max_iter=500, random_state=_SEED)
    raise CalibrationError(f"classifier must be one of {CLASSIFIERS}, got {kind!r}")
