"""Simple early-exit rules, written plainly: what any rule that we advise has to beat.

Each is a sequence of thresholds from cautious to bold, with every question's cost and loss at each.
All are certified by the same exact test.  They use numpy and scipy only, not StopAdvisor's
statistics, so that a fault there cannot hide here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy import stats

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from tests.benchmarks.real_traces import Traces, Waits

__all__ = [
    "CUE_TOKENS",
    "Agreement",
    "Certifier",
    "Contestant",
    "OneSequence",
    "Outcome",
    "Sequence",
    "agreement",
    "confidence_at_waits",
    "fixed_budget",
    "most_losses",
]

CUE_TOKENS = 8
"""Tokens that ask for an answer; read, not decoded.  Their number was not recorded: this is about
what these models' tokenizers make of the cue."""
AGREEMENT_EVERY = (64, 128, 192, 256, 384, 512)
_MOST_AGREEING = 128
_SUREST, _LEAST_SURE = 14.0, -3.0
_STEP = 0.02
"""Distance between two thresholds, in log-odds of the confidence."""


@dataclass(frozen=True)
class Outcome:
    """Loss and cost of every question under one rule."""

    lost: BoolArray  # (n_questions,)
    """Full thinking is right, the answer given is wrong."""
    cost: FloatArray  # (n_questions,)


class Certifier(Protocol):
    """A rule that was chosen on fit questions, without its threshold."""

    def certify(self, rows: IntArray) -> Outcome:
        """Test it on calibration questions (a row may come twice); full thinking if it fails."""
        ...


class Contestant(Protocol):
    """A way to choose a rule on fit questions."""

    def fit(self, rows: IntArray, n_calibration: int) -> Certifier:
        """Choose, seeing these questions and nothing else."""
        ...


def most_losses(n: int, alpha: float, delta: float) -> int:
    """Most losses among `n` at which the exact test still excludes a risk above alpha; or -1."""
    return int((stats.binom.cdf(np.arange(n + 1), n, alpha) <= delta).sum()) - 1


@dataclass(frozen=True)
class Sequence:
    """A rule at each of its thresholds, careful ones first."""

    lost: BoolArray  # (n_questions, n_thresholds)
    cost: FloatArray  # (n_questions, n_thresholds)
    full_cost: FloatArray  # (n_questions,)
    differs: BoolArray  # (n_questions, n_thresholds)
    """Whether the answer given is another than full thinking's; nothing else can be lost."""

    def last_passed(self, rows: IntArray, limit: float) -> int:
        """Last threshold before the first that loses more than `limit`; -1 if there is none."""
        # A product of counts: rows may repeat.
        counts = np.bincount(rows, minlength=len(self.lost)).astype(np.float32)
        over = np.flatnonzero(counts @ self.lost > limit)
        return (int(over[0]) if over.size else self.lost.shape[1]) - 1

    def at(self, position: int) -> Outcome:
        """The rule at one threshold; full thinking at -1."""
        if position < 0:
            return Outcome(np.zeros(len(self.lost), dtype=bool), self.full_cost)
        return Outcome(self.lost[:, position], self.cost[:, position])


@dataclass(frozen=True)
class OneSequence:
    """A sequence certified at the whole of delta by fixed-sequence testing; nothing to choose."""

    sequence: Sequence
    alpha: float
    delta: float

    def fit(self, rows: IntArray, n_calibration: int) -> OneSequence:
        return self

    def certify(self, rows: IntArray) -> Outcome:
        limit = most_losses(rows.size, self.alpha, self.delta)
        return self.sequence.at(self.sequence.last_passed(rows, limit))


@dataclass(frozen=True)
class Agreement:
    """k equal answers in a row; how often to ask is chosen on fit questions, by cost."""

    sequences: tuple[Sequence, ...]
    alpha: float
    delta: float

    def fit(self, rows: IntArray, n_calibration: int) -> OneSequence:
        # As many losses as calibration could still certify, carried over to fit questions.
        most = most_losses(n_calibration, self.alpha, self.delta)
        limit = most / n_calibration * rows.size if most >= 0 else -1.0

        def cost(sequence: Sequence) -> float:
            return float(sequence.at(sequence.last_passed(rows, limit)).cost[rows].sum())

        return OneSequence(min(self.sequences, key=cost), self.alpha, self.delta)


# --- The rules ------------------------------------------------------------------------------------


def fixed_budget(traces: Traces, prefill: float) -> Sequence:
    """Stop at T thinking tokens, T from the largest; no question is asked before."""
    positions = traces.positions[::-1]
    live, full = traces.live[:, ::-1], traces.full_cost(prefill)
    asked = prefill * (traces.prompt_tokens[:, None] + CUE_TOKENS)
    stopped = positions + traces.probe_tokens[:, ::-1] + asked
    wrong = traces.full_correct[:, None] & (traces.codes[:, ::-1] != 1)
    return Sequence(
        live & wrong,
        np.where(live, stopped, full[:, None]),
        full,
        live & _differs(traces, traces.codes[:, ::-1]),
    )


def agreement(traces: Traces, prefill: float, every: int) -> Sequence:
    """Stop at k equal answers in a row, asked every `every` tokens; k from the largest to 2."""
    step = every // int(traces.positions[0])
    columns = np.arange(step - 1, traces.positions.size, step)
    codes = traces.codes[:, columns]
    longest = np.maximum.accumulate(_equal_in_a_row(codes), axis=1)
    wanted = np.arange(min(_MOST_AGREEING, columns.size), 1, -1)
    stops = np.stack([(longest < k).sum(axis=1) for k in wanted], axis=1)
    return _stopped(
        traces,
        np.broadcast_to(traces.positions[columns], codes.shape),
        codes,
        traces.probe_tokens[:, columns],
        stops,
        prefill,
    )


def confidence_at_waits(traces: Traces, waits: Waits, prefill: float) -> Sequence:
    """Stop at the first "Wait" whose trial answer is sure enough (DEER)."""
    with np.errstate(divide="ignore"):  # a confidence of 1 has infinite log-odds
        odds = waits.mean_logprob - np.log(-np.expm1(waits.mean_logprob))
    surest = np.maximum.accumulate(np.where(waits.live, odds, -np.inf), axis=1)
    thresholds = np.arange(_SUREST, _LEAST_SURE, -_STEP)
    stops = np.stack([(surest < limit).sum(axis=1) for limit in thresholds], axis=1)
    return _stopped(traces, waits.positions, waits.codes, waits.probe_tokens, stops, prefill)


def _equal_in_a_row(codes: IntArray) -> IntArray:
    """Answers in a row, up to each, that are the same; 0 where there is none: it equals nothing."""
    changed = np.ones(codes.shape, dtype=bool)
    changed[:, 1:] = codes[:, 1:] != codes[:, :-1]
    index = np.arange(codes.shape[1])
    began = np.maximum.accumulate(np.where(changed, index, 0), axis=1)
    return np.where(codes > 0, index - began + 1, 0)


def _stopped(
    traces: Traces,
    positions: IntArray,
    codes: IntArray,
    probe_tokens: IntArray,
    stops: IntArray,
    prefill: float,
) -> Sequence:
    """Losses and costs of stopping at given probes; `stops` counts the probes before the stop.

    Parameters
    ----------
    positions, codes, probe_tokens : ndarray of int, shape (n_questions, n_probes)
        A code of -1, or a position of -1, is a probe that does not happen.
    stops : ndarray of int, shape (n_questions, n_thresholds)
        `n_probes` for never.
    """
    live = (codes >= 0) & (positions >= 0)
    probing = np.cumsum(np.where(live, probe_tokens + prefill * CUE_TOKENS, 0.0), axis=1)
    full = traces.full_cost(prefill)
    cost = np.empty((len(codes), codes.shape[1] + 1))
    cost[:, :-1] = positions + probing + prefill * traces.prompt_tokens[:, None]
    cost[:, -1] = full + probing[:, -1]
    lost, differs = np.zeros((2, *cost.shape), dtype=bool)
    lost[:, :-1] = traces.full_correct[:, None] & (codes != 1)
    differs[:, :-1] = _differs(traces, codes)
    lost, cost, differs = (np.take_along_axis(of, stops, axis=1) for of in (lost, cost, differs))
    return Sequence(lost, cost, full, differs)


def _differs(traces: Traces, codes: IntArray) -> BoolArray:
    """Not where full thinking gave no answer: there is none to lose."""
    full = traces.full_codes[:, None]
    return np.asarray((full > 0) & (codes != full))
