"""Scores and features that a rule can compute from its own probes so far; no labels.

An empty answer (code 0) equals nothing: its run is 0 and it gets no votes.
"""

from __future__ import annotations

import numpy as np

from stopadvisor.arrays import FloatArray, IntArray
from tests.benchmarks.candidate.observations import Observed

__all__ = ["FULL", "SHORT", "features", "log_odds", "standing"]

SHORT = ("log_position", "log_run")
"""Few features, for few fit questions."""
FULL = ("log_position", "log_run", "vote_share", "log_votes", "marker_density")
_MOST_ODDS = 12.0
"""Log-odds beyond which a confidence is a matter of rounding."""
_SUREST = -1e-12
"""Nats; a confidence of 1 would have infinite log-odds."""


def log_odds(logprob: FloatArray) -> FloatArray:
    """Log-odds of the confidence exp(logprob), of the same shape.

    Log-probabilities crowd near 0, where the sure answers are; log-odds tell these apart.
    """
    odds = logprob - np.log(-np.expm1(np.minimum(logprob, _SUREST)))
    return np.clip(odds, -_MOST_ODDS, _MOST_ODDS)


def standing(seen: Observed, power: float) -> FloatArray:
    """Tokens for which the answer has stood, over position ** power; (n_questions, n_probes).

    0 below two equal answers in a row.  With a power of 0 this is k equal answers as everybody
    knows them; with 0.5 an answer has to stand longer, the longer the thinking was before.
    """
    run, began = _runs(seen.code)
    since = seen.position - np.take_along_axis(seen.position, began, axis=1)
    return np.where(run > 1, since / np.maximum(seen.position, 1) ** power, 0.0)


def features(seen: Observed, names: tuple[str, ...]) -> FloatArray:
    """Named features, (n_questions, n_probes, n_features), and log-odds where they are known."""
    run, _ = _runs(seen.code)
    position = np.maximum(seen.position, 1).astype(np.float64)
    votes = _votes(seen.code)
    known = {
        "log_position": np.log(position),
        "log_run": np.log1p(run),
        "vote_share": votes / np.arange(1, run.shape[1] + 1),
        "log_votes": np.log1p(votes),
        "marker_density": seen.markers / position * 100,  # in 100 tokens
    }
    columns = [known[name] for name in names]
    if seen.logprob is not None:
        columns.append(log_odds(seen.logprob))
    return np.stack(columns, axis=-1)


def _runs(code: IntArray) -> tuple[IntArray, IntArray]:
    """Equal answers in a row up to each probe, 0 for none, and the column where the run began."""
    changed = np.ones(code.shape, dtype=bool)
    changed[:, 1:] = code[:, 1:] != code[:, :-1]
    column = np.arange(code.shape[1])
    began = np.maximum.accumulate(np.where(changed, column, 0), axis=1)
    return np.where(code > 0, column - began + 1, 0), began


def _votes(code: IntArray) -> IntArray:
    """How many answers so far equal this one, itself included; (n_questions, n_probes)."""
    votes = np.zeros(code.shape, dtype=np.int64)
    for j in range(code.shape[1]):
        equal = (code[:, : j + 1] == code[:, j : j + 1]) & (code[:, j : j + 1] > 0)
        votes[:, j] = equal.sum(axis=1)
    return votes
