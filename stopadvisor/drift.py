"""Drift of features between two samples of questions.

A permutation test over questions (never over checkpoints, which are not independent) of the
Kolmogorov–Smirnov distance, one feature at a time, with Holm's correction over features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stopadvisor.features import FEATURES, feature_array
from stopadvisor.probes import FloatArray, ProbeTable

__all__ = ["Drift", "feature_drift", "holm", "question_features"]

_PERMUTATIONS = 1999


@dataclass(frozen=True)
class Drift:
    """How far one feature's distribution has moved."""

    feature: str
    distance: float
    """Kolmogorov–Smirnov distance, 0–1."""
    p_value: float
    adjusted_p: float
    """Holm over all features."""


def question_features(table: ProbeTable, schedule: Sequence[int]) -> FloatArray:
    """Mean of each feature over a question's live checkpoints.

    Returns
    -------
    ndarray of float, shape (n_kept, n_features)
        Questions that end before the first checkpoint have no features and are left out.
    """
    live = ~table.ended[:, schedule]
    kept = live.any(axis=1)
    values = feature_array(table, schedule)[kept]
    weights = live[kept].astype(np.float64)[..., None]
    return np.asarray((values * weights).sum(axis=1) / weights.sum(axis=1))


def holm(p_values: FloatArray) -> FloatArray:
    """Holm's step-down adjustment; shape (n_tests,)."""
    order = np.argsort(p_values)
    steps = p_values[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty_like(steps)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def feature_drift(
    before: FloatArray, after: FloatArray, *, rng: np.random.Generator
) -> tuple[Drift, ...]:
    """Test each feature for a change of distribution.

    Parameters
    ----------
    before, after : ndarray of float, shape (n_before, 8) and (n_after, 8)
        `question_features` of the two samples.
    rng : numpy.random.Generator

    Returns
    -------
    tuple of Drift
        Empty where a sample is empty.
    """
    n_before, n_after = len(before), len(after)
    if not n_before or not n_after:
        return ()
    pooled = np.concatenate([before, after])  # (n_both, n_features)
    order = np.argsort(pooled, axis=0, kind="stable")
    ranked = np.take_along_axis(pooled, order, axis=0)
    # The distribution functions may be compared only where a run of equal values ends.
    run_ends = np.ones(ranked.shape, dtype=bool)
    run_ends[:-1] = ranked[1:] != ranked[:-1]
    step = np.concatenate([np.full(n_before, 1 / n_before), np.full(n_after, -1 / n_after)])

    def distances(steps: FloatArray) -> FloatArray:
        gaps = np.abs(np.cumsum(steps[order], axis=0))
        return np.asarray(np.where(run_ends, gaps, 0.0).max(axis=0))

    observed = distances(step)
    exceeded = np.ones(len(FEATURES))
    for _ in range(_PERMUTATIONS):
        exceeded += distances(rng.permutation(step)) >= observed - 1e-12
    p_values = exceeded / (_PERMUTATIONS + 1)
    rows = zip(FEATURES, observed.tolist(), p_values.tolist(), holm(p_values).tolist(), strict=True)
    return tuple(Drift(*row) for row in rows)
