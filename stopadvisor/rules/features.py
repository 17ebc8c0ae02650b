"""Features of a probe: the paper's eight, and those that count thinking tokens.

Features at checkpoint j depend on checkpoints 0…j of the policy's own schedule.  Two of the paper's
eight measure how far along the grid a checkpoint is, so they need a grid.  The online stepper
computes the same numbers one checkpoint at a time with the same float64 operations: a replayed run
gives bit-identical features.
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
    "AUDIT_FEATURES", "FEATURES", "GRID_FEATURES", "LOGPROB_FEATURES", "MOST_LOG_ODDS",
    "OPEN_FEATURES", "POSITION_FEATURES", "SUREST_LOGPROB", "TEXT_FEATURES", "LinearModel",
    "feature_array", "log_odds_of", "run_lengths", "standing_tokens",
]  # fmt: skip

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
"""Features that need no grid, counted in thinking tokens and probes so far.

An empty answer equals no other here: its run is 0 and it gets no votes.
"""

OPEN_FEATURES = ("closed_by_itself",)
"""Only for probes with an open cue: the model closed its thinking right after the answer."""

MOST_LOG_ODDS = 12.0
"""Clipping limit of `answer_log_odds`: beyond it, confidence is a matter of rounding."""

SUREST_LOGPROB = -1e-12
"""Largest log-probability (nats) used: the log-odds of a confidence of 1 would be infinite."""

AUDIT_FEATURES = ("ended", "think_tokens")
"""Natural end marker seen, and observed thinking length: they leak length (paper, Section
"Prefix-Observable Features"), so no exported policy uses them."""

LOGPROB_FEATURES = ("answer_logprob", "answer_entropy", "answer_log_odds")
"""Features that need an endpoint with log-probabilities."""

GRID_FEATURES = ("budget_fraction", "checkpoint_index")
"""How far along its grid a checkpoint is; undefined where each question has its own positions."""

TEXT_FEATURES = tuple(f for f in FEATURES if f not in LOGPROB_FEATURES)
"""Those of the paper's eight that an endpoint without log-probabilities still gives."""


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
    """Thinking tokens since the present answer first appeared in its run.

    Parameters
    ----------
    positions : ndarray of int, shape (n_questions, n_checkpoints), or (1, n_checkpoints) for a grid
        Thinking tokens before each probe.
    answer_codes : ndarray of int, shape (n_questions, n_checkpoints)

    Returns
    -------
    ndarray of int, shape (n_questions, n_checkpoints)
        The position minus the one at which the run began; 0 for a run of one and for an empty
        answer.
    """
    runs = run_lengths(answer_codes)
    began = np.arange(answer_codes.shape[1]) - runs + 1
    rows = np.broadcast_to(positions, answer_codes.shape)
    stood = rows - np.take_along_axis(rows, began, axis=1)
    return np.where(answer_codes == EMPTY_ANSWER, 0, stood)


def _votes(answer_codes: IntArray) -> IntArray:
    """Count the answers so far that equal this one, itself included."""
    votes = np.empty(answer_codes.shape, dtype=np.int64)
    for j in range(answer_codes.shape[1]):
        votes[:, j] = (answer_codes[:, : j + 1] == answer_codes[:, j : j + 1]).sum(axis=1)
    return votes


def _mapped(function: Callable[[float], float], whole: IntArray) -> FloatArray:
    """Apply a function of Python floats to integers >= 0, once per distinct value.

    numpy's vectorised logarithms may differ in the last bit from the C library's, which the stepper
    uses.
    """
    most = int(whole.max(initial=0))
    if most < whole.size:  # a lookup table is small, and faster than sorting
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
    # In pieces: lists of Python floats take four times the memory.
    for start in range(0, unsure.size, _PIECE):
        piece = unsure[start : start + _PIECE].tolist()
        rest[start : start + _PIECE] = [math.log(-math.expm1(value)) for value in piece]
    odds = logprob - rest.reshape(logprob.shape)
    return np.clip(odds, -MOST_LOG_ODDS, MOST_LOG_ODDS)


_PIECE = 1 << 16


def feature_array(table: ProbeTable, names: Sequence[str] = FEATURES) -> NDArray[np.float64]:
    """Features of every question at every checkpoint, (n_questions, n_checkpoints, n_features).

    Raises
    ------
    ProbeError
        An unknown feature, a table without checkpoints, one of `OPEN_FEATURES` where the cue was
        not open, or one of `GRID_FEATURES` where questions were probed at positions of their own:
        online, nobody knows where the last probe of a question will be.

    References
    ----------
    Paper, Section "Prefix-Observable Features" and Appendix, Table "Deployment feature
    definitions".  The published scripts divide the budget by 1000 instead of by the last one;
    after standardisation that is the same feature.
    """
    codes = table.answer_codes  # (n_questions, n_checkpoints)
    n_checkpoints = table.n_checkpoints
    if n_checkpoints == 0:
        raise ProbeError("features need at least one checkpoint, got none")
    out = np.empty((*codes.shape, len(names)))
    for k, name in enumerate(names):
        column = out[..., k]
        if name in GRID_FEATURES and not table.is_grid:
            raise ProbeError(
                f"feature {name!r} takes one grid of budgets for all questions; these were probed "
                "at positions of their own"
            )
        if name == "budget_fraction":
            budgets = table.budgets.astype(np.float64)
            # A lone checkpoint at budget 0 is its own whole grid.
            column[:] = budgets / budgets[-1] if budgets[-1] > 0 else 0.0
        elif name == "checkpoint_index":
            column[:] = np.arange(n_checkpoints) / max(n_checkpoints - 1, 1)
        elif name == "answer_logprob":
            column[:] = table.mean_logprob
        elif name == "answer_entropy":
            column[:] = table.mean_entropy
        elif name == "previous_match":
            column[:, 0] = 0.0
            column[:, 1:] = codes[:, 1:] == codes[:, :-1]
        elif name == "run_length":
            column[:] = run_lengths(codes)
        elif name == "vote_share":
            column[:] = _votes(codes) / np.arange(1, n_checkpoints + 1)
        elif name == "marker_density":
            prefix = table.think_tokens.astype(np.float64)
            column[:] = np.where(prefix > 0, table.markers / np.maximum(prefix, 1), 0.0)
        elif name in POSITION_FEATURES:
            column[:] = _position_feature(name, table)
        elif name in OPEN_FEATURES:
            if table.closed_by_itself is None:
                raise ProbeError(
                    f"feature {name!r} takes probes with an open cue, these were not: probe with "
                    "--cue open"
                )
            column[:] = table.closed_by_itself
        elif name == "ended":
            column[:] = table.ended
        elif name == "think_tokens":
            column[:] = table.think_tokens
        else:
            known = FEATURES + POSITION_FEATURES + OPEN_FEATURES + AUDIT_FEATURES
            raise ProbeError(f"feature must be one of {known}, got {name!r}")
    return out


def _position_feature(name: str, table: ProbeTable) -> NDArray[Any]:
    """One of `POSITION_FEATURES`; for positions on a grid one row, the same for all questions."""
    if name == "answer_log_odds":
        return log_odds_of(table.mean_logprob)
    positions = table.positions_at(range(table.n_checkpoints))
    if name == "position":
        return positions
    if name == "log_position":
        return _mapped(math.log, np.maximum(positions, 1))
    if name == "tokens_since_probe":
        return np.diff(positions, axis=1, prepend=0)
    codes = table.answer_codes
    count = run_lengths(codes) if name == "log_run" else _votes(codes)
    count[codes == EMPTY_ANSWER] = 0
    if name == "vote_fraction":
        return count / np.arange(1, table.n_checkpoints + 1)
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
