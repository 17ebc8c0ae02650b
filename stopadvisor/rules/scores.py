"""Stopping scores: one number per question and checkpoint; higher means stop sooner.

Scalar families read one signal; learned ones fit a small model on graded checkpoints.  Scores are
on the *linear* scale (log-odds, mean log-probability); `families.display_threshold` turns a
threshold into the number people know.

Summation has a fixed order and uses plain float64 operations, so that the online stepper, which
takes one checkpoint at a time in pure Python, gets bit-identical scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.constants import LOGISTIC_C, LOGISTIC_MAX_ITER, N_FOLDS
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.families import AGREEMENT_FAMILIES, RUNG_FAMILIES, STOP_SCALARS
from stopadvisor.rules.features import FEATURES, LinearModel, run_lengths, standing_tokens

__all__ = ["fit_logistic", "out_of_fold", "paper_folds", "scalar_scores"]

_NEWTON_STEPS = 50
_NEWTON_TOLERANCE = 1e-14
_SMALLEST_STEP = 1e-10

# numpy's vectorised exp may differ from the C library's in the last bit; the stepper uses the
# latter, and a threshold may fall between the two.
_exp = np.frompyfunc(math.exp, 1, 1)


def scalar_scores(family: str, table: ProbeTable) -> FloatArray:
    """Linear scores of a family without a fitted model.

    Returns
    -------
    ndarray of float, shape (n_questions, n_checkpoints)
        ``confidence`` and ``deer``: mean log-probability; ``entropy``: minus the mean entropy
        (nats); ``run-stability``: run length of the answer; ``confidence-leap``: max(0, c_j -
        c_{j-1}) c_j with c the confidence, 0 at the first checkpoint (paper, Appendix
        "Risk-Controlled Scalar Comparisons"); ``agreement``: thinking tokens since the answer last
        changed; ``agreement-scaled``: those divided by the square root of the position;
        ``fixed-budget``: the position; families of a ladder: the number of the step.
    """
    if family in ("confidence", "deer"):
        return table.mean_logprob
    if family == "entropy":
        return -table.mean_entropy
    if family == "run-stability":
        return run_lengths(table.answer_codes).astype(np.float64)
    if family == "confidence-leap":
        confidence = np.asarray(_exp(table.mean_logprob), dtype=np.float64)
        leap = np.zeros_like(confidence)
        leap[:, 1:] = np.maximum(0.0, confidence[:, 1:] - confidence[:, :-1]) * confidence[:, 1:]
        return leap
    positions = table.padded_positions
    if family in AGREEMENT_FAMILIES:
        stood = standing_tokens(positions, table.answer_codes).astype(np.float64)
        return stood if family == "agreement" else stood / np.sqrt(np.maximum(positions, 1))
    if family == "fixed-budget" or family in RUNG_FAMILIES:
        return np.broadcast_to(positions, table.answer_codes.shape).astype(np.float64)
    known = (*STOP_SCALARS, "fixed-budget")
    raise CalibrationError(f"scalar family must be one of {known}, got {family!r}")


def fit_logistic(
    features: FloatArray,
    correct: BoolArray,
    names: Sequence[str] = FEATURES,
    *,
    solver: Literal["newton", "lbfgs"] = "newton",
    weights: FloatArray | None = None,
    ridge: float = 1 / LOGISTIC_C,
) -> LinearModel:
    """Fit LearnStop: standardise the features, then a logistic regression of correctness.

    Parameters
    ----------
    features : ndarray of float, shape (n_rows, n_features)
    correct : ndarray of bool, shape (n_rows,)
    names : sequence of str, length n_features
    solver : {"newton", "lbfgs"}
        ``lbfgs`` is scikit-learn's, with the stopping criteria of the paper's scripts; ``newton``
        reaches the optimum of the same objective in a few steps, without scikit-learn.
    weights : ndarray of float, shape (n_rows,), optional
        Weight of each row; only for ``newton``, as is `ridge`.
    ridge : float
        Penalty on half the sum of squared coefficients, for standardised features.

    Raises
    ------
    CalibrationError
        There are no rows, or all labels are the same.

    References
    ----------
    Paper, Appendix "Reproducibility Manifest", Training: StandardScaler, C=1.0, lbfgs,
    max_iter=1000.
    """
    if correct.size == 0 or correct.all() or not correct.any():
        found = "no rows" if correct.size == 0 else f"{int(correct[0])} only"
        raise CalibrationError(
            f"a learned stopper needs both right and wrong forced answers, got {found}"
        )
    mean = features.mean(axis=0)
    scale = features.std(axis=0)
    # The spread of a constant column is rounding error, which grows with the number of rows.  The
    # bound is scikit-learn's.
    rounding = len(features) * np.finfo(float).eps
    scale[scale**2 <= rounding * scale**2 + (rounding * mean) ** 2] = 1.0
    standardised = (features - mean) / scale
    if solver == "newton":
        coef, intercept = _newton(standardised, correct, weights, ridge)
    else:
        coef, intercept = _lbfgs(standardised, correct)
    return LinearModel(
        tuple(names), tuple(mean.tolist()), tuple(scale.tolist()), tuple(coef.tolist()), intercept
    )


def _lbfgs(x: FloatArray, y: BoolArray) -> tuple[FloatArray, float]:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=LOGISTIC_C, max_iter=LOGISTIC_MAX_ITER, solver="lbfgs").fit(x, y)
    return model.coef_[0], float(model.intercept_[0])


def _newton(
    x: FloatArray, y: BoolArray, weights: FloatArray | None, ridge: float
) -> tuple[FloatArray, float]:
    """Minimise sum(weight · log-loss) + ridge · |coef|² / 2 by damped Newton steps."""
    design = np.column_stack([x, np.ones(len(x))])
    penalty = np.full(design.shape[1], ridge)
    penalty[-1] = 0.0
    sign = np.where(y, 1.0, -1.0)
    weight = np.ones(len(x)) if weights is None else weights

    def objective(beta: FloatArray) -> float:
        margin = sign * (design @ beta)
        loss = (weight * np.logaddexp(0, -margin)).sum()
        return float(loss + 0.5 * (penalty * beta**2).sum())

    beta = np.zeros(design.shape[1])
    value = objective(beta)
    for _ in range(_NEWTON_STEPS):
        probability = expit(design @ beta)
        gradient = design.T @ (weight * (probability - y)) + penalty * beta
        curvature = weight * probability * (1 - probability)
        hessian = (design * curvature[:, None]).T @ design + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        # The objective is convex: a full step overshoots only if classes are nearly separable.
        size = 1.0
        while (new := objective(beta - size * step)) > value and size > _SMALLEST_STEP:
            size /= 2
        beta, gained, value = beta - size * step, value - new, new
        if gained <= _NEWTON_TOLERANCE * max(abs(value), 1.0):
            break
    return beta[:-1], float(beta[-1])


def paper_folds(n_questions: int) -> IntArray:
    """Fold of each question under the paper protocol: (N - 1 - i) mod 5.

    scikit-learn's GroupKFold (1.9 and later) assigns these folds to one group per question in
    order; earlier releases order equal groups differently.
    """
    return (n_questions - 1 - np.arange(n_questions)) % N_FOLDS


def out_of_fold(features: NDArray[np.float64], correct: BoolArray, folds: IntArray) -> FloatArray:
    """Scores of each question by a model that never saw it, fitted as in the paper.

    Parameters
    ----------
    features : ndarray of float, shape (n_questions, n_checkpoints, n_features)
    correct : ndarray of bool, shape (n_questions, n_checkpoints)
    folds : ndarray of int, shape (n_questions,)
        All checkpoints of a question, and all questions of a group, share a fold.

    Returns
    -------
    ndarray of float, shape (n_questions, n_checkpoints)
        Log-odds.
    """
    scores = np.empty(correct.shape)
    for fold in np.unique(folds):
        held = folds == fold
        x, y = features[~held], correct[~held]
        model = fit_logistic(x.reshape(-1, x.shape[-1]), y.ravel(), solver="lbfgs")
        scores[held] = model.scores(features[held])
    return scores
