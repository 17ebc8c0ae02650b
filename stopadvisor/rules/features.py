"""Features of a probe: the paper's eight, and those that count thinking tokens.

Features at checkpoint j depend only on checkpoints 0…j of the policy's own schedule.  Two of the
paper's eight say how far along the grid a checkpoint is, so they need a grid.  The online stepper
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
    "OPEN_FEATURES", "POSITION_FEATURES", "SUREST_LOGPROB", "LinearModel",
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
"""Features that need no grid: they count thinking tokens and probes so far.

Here an empty answer equals no other: its run is 0 and it gets no votes.
"""

OPEN_FEATURES = ("closed_by_itself",)
"""For probes with an open cue only: the model closed its thinking right after the answer."""

MOST_LOG_ODDS = 12.0
"""Limit at which `answer_log_odds` is clipped: beyond it, confidence is mostly rounding error."""

SUREST_LOGPROB = -1e-12
"""Largest log-probability (nats) used, because a confidence of 1 has infinite log-odds."""

AUDIT_FEATURES = ("ended", "think_tokens")
"""Natural end marker seen, and observed thinking length.  They leak the length (paper, Section
"Prefix-Observable Features"), so no exported policy uses them."""

LOGPROB_FEATURES = ("answer_logprob", "answer_entropy", "answer_log_odds")
"""Features that need an endpoint with log-probabilities."""

GRID_FEATURES = ("budget_fraction", "checkpoint_index")
"""How far along its grid a checkpoint is; undefined if each question has its own positions."""


def run_lengths(answer_codes: IntArray) -> IntArray:
    """Length of the run of equal normalised answers that ends at each checkpoint.

    Has the shape of `answer_codes`, (n_questions, n_checkpoints); 1 at the first checkpoint and
    wherever the answer changed.
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
        The position minus the one at which the run began; 0 for a run of one or an empty answer.
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

    numpy's vectorised logarithms may differ in the last bit from the C library's, and the stepper
    uses the latter.
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
        An unknown feature, a table without checkpoints, one of `OPEN_FEATURES` if the cue was not
        open, or one of `GRID_FEATURES` if questions were probed at positions of their own: online,
        the last position of a question is unknown until it ends.

    References
    ----------
    Paper, Section "Prefix-Observable Features" and Appendix, Table "Deployment feature
    definitions".  The published scripts divide the budget by 1000 instead of by the last one;
    after standardisation that is the same feature.
    """
    if table.n_checkpoints == 0:
        raise ProbeError("features need at least one checkpoint, got none")
    out = np.empty((*table.answer_codes.shape, len(names)))
    for k, name in enumerate(names):
        if name not in _COLUMNS:
            raise ProbeError(f"feature must be one of {tuple(_COLUMNS)}, got {name!r}")
        if name in GRID_FEATURES and not table.is_grid:
            raise ProbeError(
                f"feature {name!r} needs one grid of budgets for all questions, and each of these "
                "was probed at positions of its own"
            )
        if name in OPEN_FEATURES and table.closed_by_itself is None:
            raise ProbeError(
                f"feature {name!r} needs probes with an open cue, and these have none: probe with "
                "--cue open"
            )
        out[..., k] = _COLUMNS[name](table)
    return out


def _budget_fraction(table: ProbeTable) -> FloatArray:
    budgets = table.budgets.astype(np.float64)
    # A grid may be one checkpoint at budget 0.
    return budgets / budgets[-1] if budgets[-1] > 0 else np.zeros_like(budgets)


def _previous_match(table: ProbeTable) -> NDArray[Any]:
    codes = table.answer_codes
    return np.pad(codes[:, 1:] == codes[:, :-1], ((0, 0), (1, 0)))


def _marker_density(table: ProbeTable) -> FloatArray:
    prefix = table.think_tokens.astype(np.float64)
    return np.where(prefix > 0, table.markers / np.maximum(prefix, 1), 0.0)


def _of_answers(counts: IntArray, table: ProbeTable) -> IntArray:
    """Runs or votes, 0 where the answer is empty."""
    return np.where(table.answer_codes == EMPTY_ANSWER, 0, counts)


def _number(table: ProbeTable) -> IntArray:
    """Number of each probe, from 1."""
    return np.arange(1, table.n_checkpoints + 1)


_COLUMNS: dict[str, Callable[[ProbeTable], NDArray[Any]]] = {
    "budget_fraction": _budget_fraction,
    "checkpoint_index": lambda t: np.arange(t.n_checkpoints) / max(t.n_checkpoints - 1, 1),
    "answer_logprob": lambda t: t.mean_logprob,
    "answer_entropy": lambda t: t.mean_entropy,
    "previous_match": _previous_match,
    "run_length": lambda t: run_lengths(t.answer_codes),
    "vote_share": lambda t: _votes(t.answer_codes) / _number(t),
    "marker_density": _marker_density,
    "position": lambda t: t.padded_positions,
    "log_position": lambda t: _mapped(math.log, np.maximum(t.padded_positions, 1)),
    "log_run": lambda t: _mapped(math.log1p, _of_answers(run_lengths(t.answer_codes), t)),
    "log_votes": lambda t: _mapped(math.log1p, _of_answers(_votes(t.answer_codes), t)),
    "vote_fraction": lambda t: _of_answers(_votes(t.answer_codes), t) / _number(t),
    "tokens_since_probe": lambda t: np.diff(t.padded_positions, axis=1, prepend=0),
    "answer_log_odds": lambda t: log_odds_of(t.mean_logprob),
    "closed_by_itself": lambda t: np.asarray(t.closed_by_itself),
    "ended": lambda t: t.ended,
    "think_tokens": lambda t: t.think_tokens,
}
"""How to compute each feature for all probes; one row for all questions if they share a grid."""


@dataclass(frozen=True)
class LinearModel:
    """A standardised logistic regression as plain numbers."""

    features: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    coef: tuple[float, ...]
    intercept: float

    def scores(self, features: NDArray[np.float64]) -> FloatArray:
        """Log-odds of the label; `features` has shape (..., n_features), the result (...)."""
        z = np.full(features.shape[:-1], self.intercept)
        for k, (mean, scale, coef) in enumerate(zip(self.mean, self.scale, self.coef, strict=True)):
            z = z + coef * ((features[..., k] - mean) / scale)
        return z
