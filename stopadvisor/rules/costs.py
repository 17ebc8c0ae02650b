"""Cost of a question, depending on where it stops.

Counts the tokens that its requests decode, prefill and read from the prefix cache; weights turn the
counts into weighted tokens, money or seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from stopadvisor.ground.arrays import BoolArray, FloatArray
from stopadvisor.ground.constants import PAPER_CACHED_WEIGHT
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.ground.fields import Condition, Line, Some
from stopadvisor.probes.rungs import Spent
from stopadvisor.probes.table import ProbeTable

__all__ = [
    "CACHE_BLOCK", "LADDER", "MONEY", "PAPER_WEIGHTS", "REGIMES", "SECONDS", "Asking",
    "Costing", "Serving", "TokenCounts", "Weights", "asked_at", "attended_by", "full_counts",
    "mean_context", "stopped_counts",
]  # fmt: skip

Serving = Literal["vllm", "kv-fork", "prefix-cache", "black-box", "ladder"]
REGIMES: tuple[Serving, ...] = ("vllm", "kv-fork", "prefix-cache", "black-box")
"""Serving regimes for probes of one trace."""
LADDER: Serving = "ladder"
"""Regime of a ladder: each reply costs the price of its rung."""
CACHE_BLOCK = 16
"""Tokens per block of a prefix cache (vLLM's default); only whole blocks are reused."""


_Price = Annotated[float, Condition("a number >= 0", lambda value: value >= 0)]


@dataclass(frozen=True)
class Weights:
    """Prices of a token of each kind and of a request, in one unit."""

    SPARSE: ClassVar[bool] = True

    prefilled: _Price
    """A prompt token that is not cached."""
    cached: _Price
    """A prompt token read from the cache."""
    decoded: _Price
    """A decoded token."""
    unit: Line
    """Unit of the costs."""
    request: _Price = 0.0
    """A request, whatever it reads and decodes."""
    round_trip: _Price = 0.0
    """Tokens that a trace decodes during a round trip; under vllm a stop wastes them, in addition
    to those decoded while the probe answers."""
    held: _Price = 0.0
    """Extra price of a decoded token per token of its context; `decoded` is then the price at no
    context."""
    context: _Price = 0.0
    """Mean context in tokens for which the prices were computed; 0 if they were not computed."""
    gpu: Line | None = None
    """Accelerators for which they were computed; null if they were not computed."""
    model: Line | None = None
    """Model for which they were computed or measured, in words."""
    in_flight: Some | None = None
    """Requests that decode together; null if unknown."""

    def __post_init__(self) -> None:
        values = (self.prefilled, self.cached, self.decoded)
        own = (*values, self.request, self.round_trip, self.held, self.context)
        if not all(np.isfinite(v) and v >= 0 for v in own) or self.decoded == 0:
            raise CalibrationError(
                "weights must be finite, >= 0 and positive for decoded tokens, "
                f"got prefilled/cached/decoded {values!r}, request {self.request!r}, round trip "
                f"{self.round_trip!r}, held {self.held!r}, context {self.context!r}"
            )

    def per_thousand(self, cost: float) -> float | None:
        """Money per 1000 requests of this mean cost; None unless the prices are in money."""
        return cost * 1000 / 1_000_000 if self.unit == MONEY else None


MONEY = "money per million tokens"
"""Unit of prices in money."""

SECONDS = "seconds"
"""Unit of prices in time, measured or computed."""

PAPER_WEIGHTS = Weights(1.0, PAPER_CACHED_WEIGHT, 1.0, "paper-weighted tokens")
"""The paper's: a cached token costs a tenth of a decoded one (Section "Deployment Cost")."""


@dataclass(frozen=True)
class TokenCounts:
    """Tokens of each kind, and requests; arrays of one shape."""

    decoded: FloatArray
    cached: FloatArray
    prefilled: FloatArray
    requests: FloatArray
    attended: FloatArray
    """Context length summed over the decoded tokens: KV-token-time."""
    headroom: FloatArray | None = None
    """Remaining thinking tokens, which a round trip could waste; None if thinking pauses for
    probes."""
    price: FloatArray | None = None
    """Cost of a ladder's replies at the prices of its rungs; None if weights apply."""

    def wasted(self, weights: Weights) -> FloatArray:
        """Thinking tokens wasted during the round trip of the last probe."""
        if self.headroom is None:
            return np.zeros_like(self.decoded)
        return np.minimum(self.headroom, weights.round_trip)

    def weighed(self, weights: Weights) -> FloatArray:
        """Cost in the unit of the weights; for a ladder `price` itself."""
        if self.price is not None:
            return self.price
        return (
            weights.decoded * (self.decoded + self.wasted(weights))
            + weights.held * self.attended
            + weights.cached * self.cached
            + weights.prefilled * self.prefilled
            + weights.request * self.requests
        )


def full_counts(table: ProbeTable) -> TokenCounts:
    """Tokens of full thinking without any probe, arrays of shape (n_questions,).

    Under ``last-checkpoint`` thinking is cut at the last budget and one answer is forced, so the
    cut itself does not count as a saving.
    """
    if table.rungs is not None:
        return _of_rungs(table.rungs.spent.each(lambda values: values[:, -1]))
    prompt = table.prompt_tokens.astype(np.float64)
    if table.reference == "natural":
        assert table.natural_tokens is not None  # held by ProbeTable
        decoded = table.trace_tokens + table.natural_tokens
        attended = attended_by(prompt, decoded)
    else:
        last = float(table.budgets[-1])
        thinking, answer = np.minimum(table.trace_tokens, last), table.probe_tokens[:, -1]
        decoded = thinking + answer
        attended = attended_by(prompt, thinking)
        attended += attended_by(prompt + last + table.suffix_tokens, answer)
    return TokenCounts(decoded, np.zeros_like(prompt), prompt, np.ones_like(prompt), attended)


def _of_rungs(spent: Spent) -> TokenCounts:
    return TokenCounts(
        spent.decoded,
        spent.cached,
        spent.prefilled,
        spent.requests,
        attended_by(spent.prefilled + spent.cached, spent.decoded),
        price=spent.price,
    )


def attended_by(before: FloatArray, decoded: FloatArray) -> FloatArray:
    """Context summed over `decoded` tokens, the first of which follows `before` others."""
    return decoded * before + decoded**2 / 2


def mean_context(table: ProbeTable) -> float:
    """Mean context, in tokens, of a token that full thinking decodes."""
    counts = full_counts(table)
    return float(counts.attended.sum() / counts.decoded.sum())


@dataclass(frozen=True)
class Costing:
    """How costs are counted: the serving regime and the weights."""

    serving: Serving = "kv-fork"
    weights: Weights = PAPER_WEIGHTS

    def full(self, table: ProbeTable) -> FloatArray:
        """Cost of full thinking without any probe, shape (n_questions,)."""
        return full_counts(table).weighed(self.weights)


@dataclass(frozen=True)
class Asking:
    """Where a rule forces an answer before it stops."""

    before: bool = True
    """Whether it forces one at every position before the stop; a fixed budget does not."""
    stop_at: int | None = None
    """Position, in thinking tokens, at which every trace is stopped; no answer is forced there if a
    stopped question gets a visible one."""


EVERYWHERE = Asking()
"""Force an answer at every position."""


def stopped_counts(
    view: ProbeTable, serving: Serving, *, asking: Asking = EVERYWHERE
) -> TokenCounts:
    """Tokens of each question, for each probe at which it may stop.

    Parameters
    ----------
    view : ProbeTable
        The rule's probes; under ``last-checkpoint`` they must end with the last checkpoint.
    serving : {"vllm", "kv-fork", "prefix-cache", "black-box"}
    asking : Asking
        Where an answer is forced.

    Returns
    -------
    TokenCounts
        Arrays of shape (n_questions, n_probes + 1); the last column is for never stopping.  Entries
        where no probe happens hold the counts so far and are never used.

    Notes
    -----
    Let P be the prompt tokens, s the suffix tokens, a_k the answer tokens of probe k and B_k its
    position.  A probe sends P + B_k + s tokens and decodes a_k; a resume sends P + B_k.  A server
    always computes at least the last token of a prompt, and the last token that a request decodes
    is not in its cache yet.

    With on-stop ``answer`` a stop at j sends one more request of P + B_j tokens, like a resume, and
    decodes the visible answer: closer, answer and ending token.  The closer counts as decoded, as
    it does in the natural answer.  Under kv-fork that request is a fork and sends nothing; under
    vllm it is the only resume.

    With an open cue a server needs up to two requests per probe: the second shows whether the model
    closes its thinking after the newline that ended the answer.  Two are counted.

    Under kv-fork a probe forks the running request.  Under vllm a stop wastes the thinking decoded
    while the probe answers, counted as decoded here, and during the round trip, which depends on
    the weights.
    """
    if view.rungs is not None:  # who never stops gets the last column, the reference
        return _of_rungs(view.rungs.spent.each(lambda v: np.column_stack([v, v[:, -1]])))
    if serving not in REGIMES:
        raise CalibrationError(f"serving must be one of {REGIMES}, got {serving!r}")
    # On a grid one row holds for all questions.
    positions = view.padded_positions.astype(np.float64)
    live = view.live  # (n_questions, n_probes)
    asked = asked_at(view, asking)
    prompt = view.prompt_tokens[:, None].astype(np.float64)
    prefix = prompt + positions  # (n_questions, n_probes)
    suffix = float(view.suffix_tokens)
    answers = np.where(asked, view.probe_tokens, 0.0)

    thinking = np.minimum(view.trace_tokens[:, None], positions)
    decoded = np.empty((view.n_questions, view.n_checkpoints + 1))
    probes_decoded = _so_far(answers, asking)
    headroom = None
    decoded[:, :-1] = thinking + probes_decoded[:, :-1]
    decoded[:, -1] = probes_decoded[:, -1]
    attended = _so_far(attended_by(prefix + suffix, answers), asking)
    attended[:, :-1] += attended_by(prompt, thinking)
    if view.reference == "natural":
        assert view.natural_tokens is not None  # held by ProbeTable
        whole = view.trace_tokens + view.natural_tokens
        decoded[:, -1] += whole
    else:
        # If the last checkpoint is live, its probe is the reply and has been counted.
        counted = live[:, -1] & asking.before
        last_answer = np.where(counted, 0.0, view.probe_tokens[:, -1])
        whole = np.minimum(view.trace_tokens, positions[:, -1])
        decoded[:, -1] += whole + last_answer
        attended[:, -1] += attended_by(prefix[:, -1] + suffix, last_answer)
    attended[:, -1] += attended_by(prompt[:, 0], whole)

    if view.visible_tokens is not None:
        decoded[:, :-1] += view.visible_tokens
        attended[:, :-1] += attended_by(prefix, view.visible_tokens)

    # A probe at 0 tokens is the first request; otherwise a request to think sends the prompt.
    at_once = asked[:, 0] & (positions[:, 0] == 0)
    opens = np.ones((view.n_questions, view.n_checkpoints + 1))
    # Without probes before the stop, that holds only for a stop right there.
    first = slice(None) if asking.before else slice(0, 1)
    if serving in ("black-box", "prefix-cache"):
        opens[:, first] = ~at_once[:, None]
    none = np.zeros_like(prefix)
    # Tokens that a request reads from the cache and prefills, and the request itself.
    probe, resume = np.stack([none, none + suffix, none]), np.stack([none, none, none])
    if serving != "kv-fork":
        standing = none
        if serving != "black-box":
            standing = np.floor(np.maximum(prefix - 1, 0) / CACHE_BLOCK) * CACHE_BLOCK
        found = standing.copy()
        if serving == "prefix-cache":  # under vllm the thinking request has cached the prompt
            found[at_once, 0] = 0.0  # nothing is cached yet
        probe = np.stack([found, prefix + suffix - found, none + 1])
        resume = np.stack([standing, prefix - standing, none + 1])
        if view.closed_by_itself is not None:
            probe *= 2  # a second request shows what follows the answer's newline
    # The request for the visible answer costs as much as the resume that it replaces.
    reply = resume.copy()
    if serving != "kv-fork" and view.on_stop == "answer":
        # At 0 tokens without a probe it is the first request: thinking has not begun.
        unopened = live[:, 0] & ~asked[:, 0] & (positions[:, 0] == 0)
        reply[0, unopened, 0], reply[1, unopened, 0] = 0.0, prompt[unopened, 0]
        opens[unopened, 0] = 0.0
    if serving == "vllm":
        resume[:] = 0.0
        # Thinking streams on while the probe decodes, and a stop discards those tokens.
        last = view.trace_tokens
        if view.reference == "last-checkpoint":
            last = np.minimum(last, view.budgets[-1])  # full thinking is cut there
        left = np.maximum(last[:, None] - positions, 0.0)
        thrown_away = np.minimum(answers, left)
        decoded[:, :-1] += thrown_away
        attended[:, :-1] += attended_by(prefix, thrown_away)
        headroom = np.zeros_like(decoded)
        headroom[:, :-1] = np.where(asked, left - thrown_away, 0.0)
    if view.reference == "last-checkpoint":
        resume[:, :, -1] = 0.0  # the last probe is the reply: no resume follows
    sums = _so_far(np.where(asked, probe, 0.0), asking)  # (3, n_questions, n_probes + 1)
    if asking.before:
        resume = np.where(asked, resume, 0.0)
        resumes = np.cumsum(resume, axis=-1)
        sums[..., :-1] += resumes - resume
        sums[..., -1] += resumes[..., -1]
    sums[1] += opens * prompt
    sums[2] += opens
    if view.on_stop == "answer":
        sums[..., :-1] += np.where(live, reply, 0.0)
    cached, prefilled, requests = sums
    return TokenCounts(decoded, cached, prefilled, requests, attended, headroom)


def asked_at(view: ProbeTable, asking: Asking) -> BoolArray:
    """Whether reaching a probe forces an answer there, (n_questions, n_probes)."""
    if view.on_stop == "probe":
        return view.live
    if not asking.before:
        return np.zeros_like(view.live)
    return view.live if asking.stop_at is None else view.live & (view.positions != asking.stop_at)


def _so_far(values: NDArray[np.float64], asking: Asking) -> FloatArray:
    """Sum over probes 0…j along the last axis, which gets one more entry: the sum of all.

    Without probes before the stop it is probe j alone, and the last entry is 0.
    """
    out = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    if asking.before:
        np.cumsum(values, axis=-1, out=out[..., :-1])
        out[..., -1] = out[..., -2]
    else:
        out[..., :-1] = values
    return out
