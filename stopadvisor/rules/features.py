"""The eight prefix-observable features, and the two audit features.

Everything at checkpoint j is computed from checkpoints 0…j of the policy's own schedule.  Two of
the eight measure how far along the grid a checkpoint is, so they take a grid.  The online stepper
computes the same numbers one checkpoint at a time; both use the same float64 operations, so that a
replayed run gives bit-identical features.  Knows no model and no labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stopadvisor.arrays import FloatArray, IntArray
from stopadvisor.errors import ProbeError
from stopadvisor.probes.table import ProbeTable

__all__ = ["AUDIT_FEATURES", "FEATURES", "TEXT_FEATURES", "feature_array", "run_lengths"]

FEATURES = (
    "budget_fraction",
    "checkpoint_index",
    "answer_logprob",
    "answer_entropy",
    "previous_match",
    "run_length",
    "vote_share",
    "marker_density",
)
"""Paper, Appendix, Table "Deployment feature definitions", in its order."""

AUDIT_FEATURES = ("ended", "think_tokens")
"""Natural end marker seen, and observed thinking length: they leak length (paper, Section
"Prefix-Observable Features"), so no exported policy uses them."""

TEXT_FEATURES = tuple(f for f in FEATURES if f not in ("answer_logprob", "answer_entropy"))
"""What an endpoint without log-probabilities still shows."""


def run_lengths(answer_codes: IntArray) -> IntArray:
    """Checkpoints in a row, up to each one, with the same normalised answer.

    Parameters
    ----------
    answer_codes : ndarray of int, shape (n_questions, n_checkpoints)

    Returns
    -------
    ndarray of int, shape (n_questions, n_checkpoints)
        1 at the first checkpoint and wherever the answer changed.
    """
    n_questions, n_checkpoints = answer_codes.shape
    changed = np.ones((n_questions, n_checkpoints), dtype=bool)
    changed[:, 1:] = answer_codes[:, 1:] != answer_codes[:, :-1]
    index = np.arange(n_checkpoints)
    started = np.maximum.accumulate(np.where(changed, index, 0), axis=1)
    return np.asarray(index - started + 1, dtype=np.int64)


def _vote_shares(answer_codes: IntArray) -> FloatArray:
    n_checkpoints = answer_codes.shape[1]
    votes = np.empty(answer_codes.shape)
    for j in range(n_checkpoints):
        votes[:, j] = (answer_codes[:, : j + 1] == answer_codes[:, j : j + 1]).sum(axis=1)
    return votes / np.arange(1, n_checkpoints + 1)


def feature_array(
    table: ProbeTable,
    schedule: Sequence[int] | None = None,
    names: Sequence[str] = FEATURES,
) -> NDArray[np.float64]:
    """Features of every question at every checkpoint of a schedule.

    Parameters
    ----------
    schedule : sequence of int, optional
        Columns of the table that the policy uses, increasing; all of them by default.
    names : sequence of str
        Which features, in this order.

    Returns
    -------
    ndarray of float, shape (n_questions, n_scheduled, n_features)

    Raises
    ------
    ProbeError
        An unknown feature, an empty schedule, or ``budget_fraction`` or ``checkpoint_index`` where
        questions were probed at positions of their own: nobody knows online how far the last probe
        of a question will be.

    References
    ----------
    Paper, Section "Prefix-Observable Features" and Appendix, Table "Deployment feature
    definitions".  The published scripts divide the budget by 1000 instead of by the last one;
    after standardisation that is the same feature.
    """
    columns = np.arange(table.n_checkpoints) if schedule is None else np.asarray(schedule)
    if columns.size == 0:
        raise ProbeError("a schedule needs at least one checkpoint, got none")
    n_scheduled = columns.size
    codes = table.answer_codes[:, columns]  # (n_questions, n_scheduled)
    shape = codes.shape
    out = np.empty((*shape, len(names)))
    for k, name in enumerate(names):
        column = out[..., k]
        if name in ("budget_fraction", "checkpoint_index") and not table.is_grid:
            raise ProbeError(
                f"feature {name!r} takes one grid of budgets for all questions; these were probed "
                "at positions of their own"
            )
        if name == "budget_fraction":
            budgets = table.budgets[columns].astype(np.float64)
            # A lone checkpoint at budget 0 is its own whole grid.
            column[:] = budgets / budgets[-1] if budgets[-1] > 0 else 0.0
        elif name == "checkpoint_index":
            column[:] = np.arange(n_scheduled) / max(n_scheduled - 1, 1)
        elif name == "answer_logprob":
            column[:] = table.mean_logprob[:, columns]
        elif name == "answer_entropy":
            column[:] = table.mean_entropy[:, columns]
        elif name == "previous_match":
            column[:, 0] = 0.0
            column[:, 1:] = codes[:, 1:] == codes[:, :-1]
        elif name == "run_length":
            column[:] = run_lengths(codes)
        elif name == "vote_share":
            column[:] = _vote_shares(codes)
        elif name == "marker_density":
            prefix = table.think_tokens[:, columns].astype(np.float64)
            column[:] = np.where(prefix > 0, table.markers[:, columns] / np.maximum(prefix, 1), 0.0)
        elif name == "ended":
            column[:] = table.ended[:, columns]
        elif name == "think_tokens":
            column[:] = table.think_tokens[:, columns]
        else:
            raise ProbeError(f"feature must be one of {FEATURES + AUDIT_FEATURES}, got {name!r}")
    return out
