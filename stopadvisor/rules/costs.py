"""What a stopped request costs: a list of engine requests, counted in tokens and weighed.

A request decodes, reads from the prefix cache and prefills.  For every question and every place
where it may stop, the three counts are summed over its requests; weights turn them into tokens,
money or seconds.  Knows no scores and no thresholds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stopadvisor.arrays import FloatArray
from stopadvisor.constants import PAPER_CACHED_WEIGHT, PROBE_CAP
from stopadvisor.errors import CalibrationError
from stopadvisor.probes.table import ProbeTable

__all__ = [
    "DEFAULT_CACHE_BLOCK",
    "MONEY",
    "NOTHING_CACHED",
    "PAPER_WEIGHTS",
    "REGIMES",
    "PaperCosts",
    "Serving",
    "ServingCost",
    "TokenCounts",
    "Weights",
    "full_counts",
    "paper_costs",
    "serving_costs",
    "stopped_counts",
]

Serving = Literal["kv-fork", "prefix-cache", "black-box", "overlap"]
REGIMES: tuple[Serving, ...] = ("kv-fork", "prefix-cache", "black-box", "overlap")
DEFAULT_CACHE_BLOCK = 16
"""Tokens per block of a prefix cache; only whole blocks are reused (vLLM's default)."""

NOTHING_CACHED = 10**9
"""A block that no prompt fills, so that every request pays for its whole prefix: costs of a server
of which nobody knows that it caches anything."""


@dataclass(frozen=True)
class Weights:
    """Price of one token of each kind, in one unit."""

    prefilled: float
    cached: float
    decoded: float
    unit: str

    def __post_init__(self) -> None:
        values = (self.prefilled, self.cached, self.decoded)
        if not all(np.isfinite(v) and v >= 0 for v in values) or self.decoded == 0:
            raise CalibrationError(
                "weights must be finite, >= 0 and positive for decoded tokens, "
                f"got prefilled/cached/decoded {values!r}"
            )

    def per_thousand(self, cost: float) -> float | None:
        """Money for a thousand requests of this mean cost; None where weights are no prices."""
        return cost * 1000 / 1_000_000 if self.unit == MONEY else None


MONEY = "money per million tokens"
"""Unit of weights that are prices."""

PAPER_WEIGHTS = Weights(1.0, PAPER_CACHED_WEIGHT, 1.0, "paper-weighted tokens")
"""The paper's: a cached token counts a tenth of a decoded one (Section "Deployment Cost")."""


@dataclass(frozen=True)
class TokenCounts:
    """Tokens of each kind; arrays of one shape."""

    decoded: FloatArray
    cached: FloatArray
    prefilled: FloatArray

    def weighed(self, weights: Weights) -> FloatArray:
        """Cost in the unit of the weights."""
        return (
            weights.decoded * self.decoded
            + weights.cached * self.cached
            + weights.prefilled * self.prefilled
        )


def full_counts(table: ProbeTable) -> TokenCounts:
    """Tokens of full thinking without any probe.

    Returns
    -------
    TokenCounts
        Arrays of shape (n_questions,).  Under ``last-checkpoint`` thinking is cut at the last
        budget and one answer is written: being cut off is not a saving.
    """
    prompt = table.prompt_tokens.astype(np.float64)
    if table.reference == "natural":
        assert table.natural_tokens is not None  # held by ProbeTable
        decoded = table.trace_tokens + table.natural_tokens
    else:
        decoded = np.minimum(table.trace_tokens, table.budgets[-1]) + table.probe_tokens[:, -1]
    return TokenCounts(decoded, np.zeros_like(prompt), prompt)


def stopped_counts(
    table: ProbeTable,
    schedule: Sequence[int] | NDArray[np.int64],
    serving: Serving,
    *,
    cache_block: int = DEFAULT_CACHE_BLOCK,
) -> TokenCounts:
    """Tokens of every question for every checkpoint at which it may stop.

    Parameters
    ----------
    schedule : sequence of int
        Columns of the table; under ``last-checkpoint`` it must end with the last one.
    serving : {"kv-fork", "prefix-cache", "black-box", "overlap"}
    cache_block : int
        Whole blocks of this many tokens are found in a prefix cache.

    Returns
    -------
    TokenCounts
        Arrays of shape (n_questions, n_scheduled + 1); the last column never stops.  Entries
        where no probe happens hold what the question has cost by then; they do not occur online.

    Notes
    -----
    With P prompt, s suffix and a_k probe tokens, and B_k the question's own k-th position: a probe
    sends P + B_k + s and decodes a_k, a
    resume sends P + B_k.  A server computes at least the last token it is sent, and the last
    decoded token of a chunk is not in its cache yet.

    With on-stop ``answer`` (visible answers in the table) a stop at j sends one request more,
    P + B_j as a resume does, and decodes the visible answer: closer, answer and ending token.  The
    closer counts as decoded, as it does in the natural answer, and not a second time as sent.
    Under kv-fork that request is a fork and sends nothing; under overlap it is the only resume.
    """
    columns = np.asarray(schedule, dtype=np.int64)
    if serving not in REGIMES:
        raise CalibrationError(f"serving must be one of {REGIMES}, got {serving!r}")
    if cache_block < 1:
        raise CalibrationError(f"cache block must be >= 1 token, got {cache_block!r}")
    if table.reference == "last-checkpoint" and columns[-1] != table.n_checkpoints - 1:
        raise CalibrationError(
            "under the last-checkpoint reference a schedule must end with the last checkpoint"
        )
    # One row stands for all questions of a grid.
    positions = table.positions_at(columns).astype(np.float64)  # (n_questions or 1, n_scheduled)
    live = table.live[:, columns]  # (n_questions, n_scheduled)
    prompt = table.prompt_tokens[:, None].astype(np.float64)
    prefix = prompt + positions  # (n_questions, n_scheduled)
    suffix = float(table.suffix_tokens)
    answers = np.where(live, table.probe_tokens[:, columns], 0.0)

    probes_decoded = np.cumsum(answers, axis=1)
    thinking = np.minimum(table.trace_tokens[:, None], positions)
    decoded = np.empty((table.n_questions, columns.size + 1))
    decoded[:, :-1] = thinking + probes_decoded
    decoded[:, -1] = probes_decoded[:, -1]
    if table.reference == "natural":
        assert table.natural_tokens is not None  # held by ProbeTable
        decoded[:, -1] += table.trace_tokens + table.natural_tokens
    else:
        # Reaching the last checkpoint alive, its probe is the answer and is counted already.
        last_answer = np.where(live[:, -1], 0.0, table.probe_tokens[:, -1])
        decoded[:, -1] += np.minimum(table.trace_tokens, positions[:, -1]) + last_answer

    if table.visible_tokens is not None:
        decoded[:, :-1] += table.visible_tokens[:, columns]

    # A probe at 0 tokens is the first request; else thinking starts alone and sends the prompt.
    at_once = live[:, 0] & (positions[:, 0] == 0)
    opening = np.where(at_once, 0.0, prompt[:, 0])
    if serving == "kv-fork":
        probe_read, resume_read = np.zeros_like(prefix), np.zeros_like(prefix)
        opening = prompt[:, 0]
        probe_fill = np.broadcast_to(suffix, prefix.shape)
        resume_fill = np.zeros_like(prefix)
    elif serving == "black-box":
        probe_read, resume_read = np.zeros_like(prefix), np.zeros_like(prefix)
        probe_fill, resume_fill = prefix + suffix, prefix
    else:
        standing = np.floor(np.maximum(prefix - 1, 0) / cache_block) * cache_block
        probe_read = standing.copy()
        if serving == "overlap":
            opening = prompt[:, 0]  # thinking starts with the first probe, which finds the prompt
        else:
            probe_read[at_once, 0] = 0.0  # nothing was sent before
        probe_fill = prefix + suffix - probe_read
        resume_read, resume_fill = standing, prefix - standing
    # The visible answer of a stop is written by a request like the resume that it replaces.
    reply_read, reply_fill = resume_read, resume_fill
    if serving == "overlap":
        resume_read, resume_fill = np.zeros_like(prefix), np.zeros_like(prefix)
        # Thinking streams on while the probe decodes; what it wrote is thrown away.
        last = table.trace_tokens
        if table.reference == "last-checkpoint":
            last = np.minimum(last, table.budgets[-1])  # full thinking is cut there
        left = np.maximum(last[:, None] - positions, 0.0)
        decoded[:, :-1] += np.minimum(answers, left)
    if table.reference == "last-checkpoint":
        # The last probe is the reply: nothing is resumed after it.
        resume_read, resume_fill = resume_read.copy(), resume_fill.copy()
        resume_read[:, -1] = resume_fill[:, -1] = 0.0
    cached = _along(probe_read, resume_read, live)
    prefilled = _along(probe_fill, resume_fill, live) + opening[:, None]
    if table.on_stop == "answer":
        cached[:, :-1] += np.where(live, reply_read, 0.0)
        prefilled[:, :-1] += np.where(live, reply_fill, 0.0)
    return TokenCounts(decoded, cached, prefilled)


def _along(
    probe: NDArray[np.float64], resume: NDArray[np.float64], live: NDArray[np.bool_]
) -> FloatArray:
    """Sum over probes 0…j and the resumes between them; last column: all of both."""
    probe, resume = np.where(live, probe, 0.0), np.where(live, resume, 0.0)
    out = np.empty((probe.shape[0], probe.shape[1] + 1))
    probes, resumes = np.cumsum(probe, axis=1), np.cumsum(resume, axis=1)
    out[:, :-1] = probes + resumes - resume
    out[:, -1] = probes[:, -1] + resumes[:, -1]
    return out


# --- One rule under every regime ------------------------------------------------------------------


@dataclass(frozen=True)
class ServingCost:
    """What one rule costs under one serving regime; means per request."""

    serving: Serving
    saving_pct: float
    """Net saving against full thinking, in the weights given."""
    decoded: float
    cached: float
    prefilled: float
    cost: float
    """In the unit of the weights."""
    full_cost: float
    probes: float
    """Probes per request."""
    break_even_probes: float | None
    """Probes per request, each as dear as the mean one now, at which the saving is gone; None if
    they cost nothing or thinking itself is not shortened.  Above `probes` just where it saves."""
    break_even_cached: float | None
    """Weight of a cached token at which the saving is gone; None where none is read or none above
    zero would do."""
    money_per_1000: float | None
    """For a thousand requests; None where the weights are no prices."""
    full_money_per_1000: float | None
    """The same with full thinking."""


def serving_costs(
    table: ProbeTable,
    schedule: Sequence[int],
    stops: NDArray[np.int64],
    weights: Weights,
    *,
    cache_block: int = DEFAULT_CACHE_BLOCK,
) -> tuple[ServingCost, ...]:
    """Cost one rule under every regime.

    Parameters
    ----------
    stops : ndarray of int, shape (n_questions,)
        Index into the schedule at which each question stops; its length for never.
    """
    full = full_counts(table)
    full_cost = float(full.weighed(weights).mean())
    live = table.live[:, list(schedule)]
    probed = live & (np.arange(len(schedule)) <= stops[:, None])
    probes = float(probed.sum(axis=1).mean())
    # The same stops with nothing to pay for finding them.
    reply = table.think_tokens[:, list(schedule)].astype(np.float64)
    if table.visible_tokens is not None:
        reply += table.visible_tokens[:, list(schedule)]
    last = np.column_stack([reply, full.decoded])
    thinking = float(
        weights.decoded * np.take_along_axis(last, stops[:, None], axis=1).mean()
        + weights.prefilled * full.prefilled.mean()
    )
    rows = []
    for regime in REGIMES:
        counts = stopped_counts(table, schedule, regime, cache_block=cache_block)
        decoded, cached, prefilled = (
            float(np.take_along_axis(kind, stops[:, None], axis=1).mean())
            for kind in (counts.decoded, counts.cached, counts.prefilled)
        )
        bare = weights.decoded * decoded + weights.prefilled * prefilled
        cost = bare + weights.cached * cached
        probing, shortened = cost - thinking, full_cost - thinking
        rows.append(
            ServingCost(
                regime,
                100 * (1 - cost / full_cost),
                decoded,
                cached,
                prefilled,
                cost,
                full_cost,
                probes,
                probes * shortened / probing if probing > 0 and shortened > 0 else None,
                (full_cost - bare) / cached if cached > 0 and full_cost > bare else None,
                weights.per_thousand(cost),
                weights.per_thousand(full_cost),
            )
        )
    return tuple(rows)


# --- The paper's accounting -----------------------------------------------------------------------


@dataclass(frozen=True)
class PaperCosts:
    """Capped tokens under the paper's accounting."""

    thinking: FloatArray  # (n_questions, n_checkpoints) min(T, B_j)
    total: FloatArray  # (n_questions, n_checkpoints) thinking + cap · (j + 1)
    full_thinking: FloatArray  # (n_questions,) T, whatever the last budget
    full_total: FloatArray  # (n_questions,) T + cap
    prefix_cache: FloatArray  # (n_questions, n_checkpoints)
    black_box: FloatArray  # (n_questions, n_checkpoints)


def paper_costs(table: ProbeTable, *, cap: int = PROBE_CAP) -> PaperCosts:
    """The paper's capped accounting under its three regimes.

    References
    ----------
    Paper, Section "Training and Metrics" (Eq. for C^cap) and Section "Deployment Cost".  As in
    the published scripts, prefix-cache adds 0.1 · B_j per probe so far, black-box the prefixes of
    all of them.
    """
    thinking = table.think_tokens.astype(np.float64)
    steps = np.arange(1, table.n_checkpoints + 1)
    total = thinking + cap * steps
    full = table.trace_tokens.astype(np.float64)
    budgets = table.budgets.astype(np.float64)
    return PaperCosts(
        thinking,
        total,
        full,
        full + cap,
        total + PAPER_CACHED_WEIGHT * budgets * steps,
        total + np.cumsum(budgets),
    )
