"""Logistic regression with a ridge penalty, in which each question counts once.

A question with many probes would otherwise outweigh many with few.  Knows nothing of thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from stopadvisor.arrays import BoolArray, FloatArray, IntArray

__all__ = ["Scores", "fit_scores"]

_STEPS = 30
_FOLDS = 5
_FLAT = 1e-9
"""Standard deviation below which a feature counts as constant."""
_FREE = 1e-9
"""Penalty of the intercept: none to speak of, and the equations stay solvable."""


@dataclass(frozen=True)
class Scores:
    """Log-odds that a model gives to every probe."""

    final: FloatArray  # (n_questions, n_probes)
    """By the model of all fit questions; it is the one that would be used."""
    left_out: FloatArray  # (n_questions, n_probes)
    """The same, but each fit question by a model that never saw it: an honest basis to choose."""


def fit_scores(
    x: FloatArray, y: BoolArray, rows: BoolArray, fit: IntArray, ridge: float
) -> Scores | None:
    """Learn from fit questions and score all; None where their labels are all the same.

    Parameters
    ----------
    x : ndarray of float, shape (n_questions, n_probes, n_features)
    y : ndarray of bool, shape (n_questions, n_probes)
        Labels; only those of fit questions are read.
    rows : ndarray of bool, shape (n_questions, n_probes)
        Which probes may train.
    fit : ndarray of int, shape (n_fit,)
    ridge : float
        Penalty of a standardised feature's squared weight, over two.
    """
    share = rows / np.maximum(rows.sum(axis=1, keepdims=True), 1)

    def scores(which: IntArray) -> FloatArray | None:
        here = rows[which]
        labels = y[which][here]
        if labels.size == 0 or labels.all() or not labels.any():
            return None
        weight = share[which][here]
        weight = weight * weight.size / weight.sum()
        linear = _fit(x[which][here], labels.astype(np.float64), weight, ridge)
        scored: FloatArray = x @ linear.slopes + linear.intercept
        return scored

    final = scores(fit)
    if final is None:
        return None
    left_out = final.copy()
    fold = np.arange(fit.size) % _FOLDS
    for number in range(_FOLDS):
        part = scores(fit[fold != number])
        if part is None:
            return None
        held = fit[fold == number]
        left_out[held] = part[held]
    return Scores(final, left_out)


@dataclass(frozen=True)
class _Linear:
    slopes: FloatArray  # (n_features,)
    intercept: float


def _fit(x: FloatArray, y: FloatArray, weight: FloatArray, ridge: float) -> _Linear:
    """Damped Newton steps; x is (n_rows, n_features), y and weight (n_rows,)."""
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > _FLAT, scale, 1.0)
    z = np.column_stack([(x - mean) / scale, np.ones(len(x))])  # (n_rows, n_features + 1)
    penalty = np.full(z.shape[1], ridge)
    penalty[-1] = _FREE
    beta = np.zeros(z.shape[1])

    def objective(b: FloatArray) -> float:
        t = z @ b
        return float((weight * (np.logaddexp(0, t) - y * t)).sum() + 0.5 * (penalty * b * b).sum())

    value = objective(beta)
    for _ in range(_STEPS):
        chance = expit(z @ beta)
        gradient = z.T @ (weight * (chance - y)) + penalty * beta
        hessian = (z * (weight * chance * (1 - chance))[:, None]).T @ z + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        while (new := objective(beta - size * step)) > value + 1e-12 and size > 1e-6:
            size /= 2
        beta = beta - size * step
        done = value - new < 1e-7 * max(abs(value), 1.0)
        value = new
        if done:
            break
    slopes = beta[:-1] / scale
    return _Linear(slopes, float(beta[-1] - slopes @ mean))
