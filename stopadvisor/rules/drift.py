"""Drift of features between two samples of questions.

Each feature gets a permutation test of the Kolmogorov–Smirnov distance over questions (checkpoints
of one question are not independent), with Holm's correction over features.  No labels are used:
features can drift while the risk stays, and the risk while features stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stopadvisor.ground.arrays import FloatArray
from stopadvisor.ground.errors import ProbeError
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.climb import RUNG_FEATURES, Climb, rung_features
from stopadvisor.rules.features import feature_array
from stopadvisor.rules.scorer import Scorer

__all__ = [
    "DRIFT_FEATURES", "Drift", "drift_features", "drift_names", "feature_drift", "holm",
    "question_features",
]  # fmt: skip

DRIFT_FEATURES = (
    *("position", "answer_logprob", "answer_entropy"),
    *("previous_match", "run_length", "vote_share", "marker_density"),
)
"""Features compared, whatever the schedule."""

_PERMUTATIONS = 1999
_MOST_QUESTIONS = 2000
"""Most questions used per sample; a shift too small to show with this many does not matter."""
_DECIMALS = 12
"""Features are rounded, so that equal ones stay equal whatever the order of summation."""


@dataclass(frozen=True)
class Drift:
    """How far one feature's distribution has moved."""

    feature: str
    """Its name."""
    distance: float
    """Kolmogorov–Smirnov distance, 0–1."""
    p_value: float
    """p-value of this feature alone."""
    adjusted_p: float
    """Holm-adjusted over all features: the smallest familywise level at which this one is
    significant."""


def question_features(view: ProbeTable) -> FloatArray:
    """Mean of each of `DRIFT_FEATURES` over a question's live probes, (n_kept, n_features).

    Questions without a live probe are left out; a feature that was not recorded counts 0.
    """
    live = view.live
    kept = live.any(axis=1)
    values = np.nan_to_num(
        feature_array(view, DRIFT_FEATURES)[kept]
    )  # (n_kept, n_probes, n_features)
    counted = np.where(live[kept][..., None], values, 0.0).sum(axis=1)
    return np.asarray(counted / live[kept].sum(axis=1, keepdims=True))


def drift_names(scorer: Scorer) -> tuple[str, ...]:
    """Names of the features compared: those of probes, or of a ladder's replies."""
    return RUNG_FEATURES if isinstance(scorer.schedule, Climb) else DRIFT_FEATURES


def drift_features(scorer: Scorer, table: ProbeTable) -> FloatArray:
    """`question_features` of a rule's probes, or the mean over the replies of a ladder.

    Shape (n_kept, n_features); a feature that was not recorded counts 0.
    """
    climb = scorer.schedule
    if not isinstance(climb, Climb):
        return question_features(scorer.view(table))
    values = np.nan_to_num(rung_features(table, climb.columns, RUNG_FEATURES))
    return np.asarray(values.mean(axis=1))


def holm(p_values: FloatArray) -> FloatArray:
    """Holm's step-down adjustment; shape (n_tests,).

    References
    ----------
    Holm (1979), "A simple sequentially rejective multiple test procedure".
    """
    order = np.argsort(p_values)
    steps = p_values[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty_like(steps)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def feature_drift(
    before: FloatArray,
    after: FloatArray,
    names: Sequence[str] = DRIFT_FEATURES,
    *,
    permutations: int = _PERMUTATIONS,
    rng: np.random.Generator,
) -> tuple[Drift, ...]:
    """Test each feature for a change of distribution.

    Parameters
    ----------
    before, after : ndarray of float, shape (n_before, n_features) and (n_after, n_features)
        `question_features` of the two samples, one row per independent question; of more than 2000
        rows, 2000 are drawn.
    names : sequence of str, length n_features
    permutations : int
        Number of random permutations; all features share them.

    Returns
    -------
    tuple of Drift
        In the order of `names`; empty if a sample is empty.

    Raises
    ------
    ProbeError
        Rows do not have `n_features` columns.

    Notes
    -----
    The p-value counts the observed split as one of the permutations, so it is never 0 and the test
    never exceeds its level (Phipson and Smyth 2010).
    """
    for rows in (before, after):
        if len(rows) and rows.shape[1:] != (len(names),):
            raise ProbeError(f"drift needs {len(names)} features a question, got {rows.shape}")
    if not len(before) or not len(after):
        return ()
    before, after = _at_most(before, rng), _at_most(after, rng)
    pooled = np.concatenate([before, after]).round(_DECIMALS)  # (n_both, n_features)
    order = np.argsort(pooled, axis=0, kind="stable")
    ranked = np.take_along_axis(pooled, order, axis=0)
    # Distribution functions are compared where a run of equal values ends.
    run_ends = np.ones(ranked.shape, dtype=bool)
    run_ends[:-1] = ranked[1:] != ranked[:-1]
    shares = np.concatenate(
        [np.full(len(before), 1 / len(before)), np.full(len(after), -1 / len(after))]
    )

    def distances(steps: FloatArray) -> FloatArray:
        gaps = np.abs(np.cumsum(steps[order], axis=0))
        return np.asarray(np.where(run_ends, gaps, 0.0).max(axis=0))

    observed = distances(shares)
    reached = np.ones(len(names))
    for _ in range(permutations):
        reached += distances(rng.permutation(shares)) >= observed - 1e-9
    p_values = reached / (permutations + 1)
    found = zip(names, observed.tolist(), p_values.tolist(), holm(p_values).tolist(), strict=True)
    return tuple(Drift(*row) for row in found)


def _at_most(rows: FloatArray, rng: np.random.Generator) -> FloatArray:
    if len(rows) <= _MOST_QUESTIONS:
        return rows
    return rows[rng.choice(len(rows), _MOST_QUESTIONS, replace=False)]
