"""What a learned rule reads at a probe: the paper's eight features, and those of positions.

Everything at checkpoint j is computed from checkpoints 0…j of the policy's own schedule.  Two of
the paper's eight measure how far along the grid a checkpoint is, so they take a grid; those of
positions count thinking tokens instead.  The online stepper computes the same numbers one
checkpoint at a time; both use the same float64 operations, so that a replayed run gives
bit-identical features.  Fits nothing; a fitted `LinearModel` turns features into
a score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopadvisor.ground.arrays import FloatArray, IntArray
from stopadvisor.ground.errors import ProbeError
from stopadvisor.probes.table import EMPTY_ANSWER, ProbeTable

__all__ = [
    "AUDIT_FEATURES",
    "FEATURES",
    "GRID_FEATURES",
    "LOGPROB_FEATURES",
    "MOST_LOG_ODDS",
    "OPEN_FEATURES",
    "POSITION_FEATURES",
    "SUREST_LOGPROB",
    "TEXT_FEATURES",
    "LinearModel",
    "feature_array",
    "log_odds_of",
    "run_lengths",
    "standing_tokens",
]

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

POSITION_FEATURES = (
    "position",
    "log_position",
    "log_run",
    "log_votes",
    "vote_fraction",
    "tokens_since_probe",
    "answer_log_odds",
)
"""Features of probes that stand anywhere, counted in thinking tokens and in probes made so far.

An empty answer equals none here: its run is 0 and it gets no votes.
"""

OPEN_FEATURES = ("closed_by_itself",)
"""What only answers after an open cue show: the model closed its thinking right after them."""

MOST_LOG_ODDS = 12.0
"""Log-odds beyond which confidence is a matter of rounding; `answer_log_odds` is clipped there."""

SUREST_LOGPROB = -1e-12
"""Nats; the log-odds of a confidence of 1 would be infinite."""

AUDIT_FEATURES = ("ended", "think_tokens")
"""Natural end marker seen, and observed thinking length: they leak length (paper, Section
"Prefix-Observable Features"), so no exported policy uses them."""

LOGPROB_FEATURES = ("answer_logprob", "answer_entropy", "answer_log_odds")
"""What only an endpoint with log-probabilities shows."""

GRID_FEATURES = ("budget_fraction", "checkpoint_index")
"""How far along its grid a checkpoint is; of no meaning where positions are a question's own."""

TEXT_FEATURES = tuple(f for f in FEATURES if f not in LOGPROB_FEATURES)
"""Of the paper's eight, what an endpoint without log-probabilities still shows."""


def run_lengths(answer_codes: IntArray) -> IntArray:
    """Checkpoints in a row, up to each one, with the same normalised answer.

    Shape (n_questions, n_checkpoints), as `answer_codes`; 1 at the first checkpoint and wherever
    the answer changed.
    """
    n_questions, n_checkpoints = answer_codes.shape
    changed = np.ones((n_questions, n_checkpoints), dtype=bool)
    changed[:, 1:] = answer_codes[:, 1:] != answer_codes[:, :-1]
    index = np.arange(n_checkpoints)
    started = np.maximum.accumulate(np.where(changed, index, 0), axis=1)
    return np.asarray(index - started + 1, dtype=np.int64)


def standing_tokens(positions: IntArray, answer_codes: IntArray) -> IntArray:
    """Thinking tokens for which the present answer has stood.

    Parameters
    ----------
    positions : ndarray of int, shape (n_questions, n_checkpoints), or (1, n_checkpoints) for a grid
        Thinking tokens before each probe.
    answer_codes : ndarray of int, shape (n_questions, n_checkpoints)

    Returns
    -------
    ndarray of int, shape (n_questions, n_checkpoints)
        The position minus the one at which the answer's run began; 0 for a run of one, and for an
        empty answer.
    """
    runs = run_lengths(answer_codes)
    began = np.arange(answer_codes.shape[1]) - runs + 1
    rows = np.broadcast_to(positions, answer_codes.shape)
    stood = rows - np.take_along_axis(rows, began, axis=1)
    return np.where(answer_codes == EMPTY_ANSWER, 0, stood)


def _votes(answer_codes: IntArray) -> IntArray:
    """How many answers so far equal this one, itself included."""
    votes = np.empty(answer_codes.shape, dtype=np.int64)
    for j in range(answer_codes.shape[1]):
        votes[:, j] = (answer_codes[:, : j + 1] == answer_codes[:, j : j + 1]).sum(axis=1)
    return votes


def _mapped(function: Callable[[float], float], whole: IntArray) -> FloatArray:
    """A function of Python floats, of each of many integers >= 0 that are often equal.

    numpy's own vectorised logarithms may differ from the C library's in the last bit; the stepper
    uses the latter.
    """
    most = int(whole.max(initial=0))
    if most < whole.size:  # a table up to the largest is small, and quicker than sorting
        occurs = np.zeros(most + 1, dtype=bool)
        occurs[whole] = True
        distinct, places = np.flatnonzero(occurs), whole
        values = np.zeros(most + 1)
        values[distinct] = [function(float(value)) for value in distinct.tolist()]
    else:
        distinct, places = np.unique(whole, return_inverse=True)
        values = np.array([function(float(value)) for value in distinct.tolist()])
    return np.asarray(values[places].reshape(whole.shape), dtype=np.float64)


def log_odds_of(logprob: FloatArray) -> FloatArray:
    """Log-odds of the confidence exp(logprob), clipped; NaN where it is unknown."""
    unsure = np.minimum(logprob, SUREST_LOGPROB).ravel()
    rest = np.empty(unsure.size)
    # In pieces: lists of Python floats take four times the room.
    for start in range(0, unsure.size, _PIECE):
        piece = unsure[start : start + _PIECE].tolist()
        rest[start : start + _PIECE] = [math.log(-math.expm1(value)) for value in piece]
    odds = logprob - rest.reshape(logprob.shape)
    return np.clip(odds, -MOST_LOG_ODDS, MOST_LOG_ODDS)


_PIECE = 1 << 16


def feature_array(
    table: ProbeTable, schedule: Sequence[int] | None = None, names: Sequence[str] = FEATURES
) -> NDArray[np.float64]:
    """Features of every question at every checkpoint of a schedule.

    `schedule` names the columns of the table that the policy uses, increasing, all by default;
    features come in the order of `names`, with shape (n_questions, n_scheduled, n_features).

    Raises
    ------
    ProbeError
        An unknown feature, one of `OPEN_FEATURES` where the cue was not open, an empty schedule, or
        ``budget_fraction`` or ``checkpoint_index`` where
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
        if name in GRID_FEATURES and not table.is_grid:
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
            column[:] = _votes(codes) / np.arange(1, n_scheduled + 1)
        elif name == "marker_density":
            prefix = table.think_tokens[:, columns].astype(np.float64)
            column[:] = np.where(prefix > 0, table.markers[:, columns] / np.maximum(prefix, 1), 0.0)
        elif name in POSITION_FEATURES:
            column[:] = _position_feature(name, table, columns)
        elif name in OPEN_FEATURES:
            if table.closed_by_itself is None:
                raise ProbeError(
                    f"feature {name!r} takes probes with an open cue, these were not: probe with "
                    "--cue open"
                )
            column[:] = table.closed_by_itself[:, columns]
        elif name == "ended":
            column[:] = table.ended[:, columns]
        elif name == "think_tokens":
            column[:] = table.think_tokens[:, columns]
        else:
            known = FEATURES + POSITION_FEATURES + OPEN_FEATURES + AUDIT_FEATURES
            raise ProbeError(f"feature must be one of {known}, got {name!r}")
    return out


def _position_feature(name: str, table: ProbeTable, columns: NDArray[np.int64]) -> NDArray[Any]:
    """One of `POSITION_FEATURES`; of a grid's positions one row, which stands for all."""
    if name == "answer_log_odds":
        return log_odds_of(table.mean_logprob[:, columns])
    positions = table.positions_at(columns)
    if name == "position":
        return positions
    if name == "log_position":
        return _mapped(math.log, np.maximum(positions, 1))
    if name == "tokens_since_probe":
        return np.diff(positions, axis=1, prepend=0)
    codes = table.answer_codes[:, columns]
    count = run_lengths(codes) if name == "log_run" else _votes(codes)
    count[codes == EMPTY_ANSWER] = 0
    if name == "vote_fraction":
        return count / np.arange(1, columns.size + 1)
    return _mapped(math.log1p, count)


@dataclass(frozen=True)
class LinearModel:
    """Standardisation and logistic regression as plain numbers."""

    features: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    coef: tuple[float, ...]
    intercept: float

    def scores(self, features: NDArray[np.float64]) -> FloatArray:
        """Log-odds of being right.

        `features` have shape (..., n_features), the log-odds (...).
        """
        z = np.full(features.shape[:-1], self.intercept)
        for k, (mean, scale, coef) in enumerate(zip(self.mean, self.scale, self.coef, strict=True)):
            z = z + coef * ((features[..., k] - mean) / scale)
        return z
