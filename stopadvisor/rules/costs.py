"""What a stopped request costs: a list of engine requests, counted in tokens and weighed.

A request decodes, reads from the prefix cache and prefills, and costs something by itself.  For
every question and every place where it may stop, the counts are summed over its requests; weights
turn them into tokens, money or seconds.  Knows no scores and no thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from stopadvisor.ground.arrays import FloatArray
from stopadvisor.ground.constants import PAPER_CACHED_WEIGHT
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.ground.fields import Condition, Line, Some
from stopadvisor.probes.rungs import Spent
from stopadvisor.probes.table import ProbeTable

__all__ = [
    "CACHE_BLOCK",
    "LADDER",
    "MONEY",
    "PAPER_WEIGHTS",
    "REGIMES",
    "SECONDS",
    "Asking",
    "Costing",
    "Serving",
    "TokenCounts",
    "Weights",
    "asked_at",
    "attended_by",
    "full_counts",
    "mean_context",
    "stopped_counts",
]

Serving = Literal["vllm", "kv-fork", "prefix-cache", "black-box", "ladder"]
REGIMES: tuple[Serving, ...] = ("vllm", "kv-fork", "prefix-cache", "black-box")
"""How probes of one trace are paid for."""
LADDER: Serving = "ladder"
"""Replies of several rungs, each paid for at its own price."""
CACHE_BLOCK = 16
"""Tokens per block of a prefix cache; only whole blocks are reused (vLLM's default)."""


_Price = Annotated[float, Condition("a number >= 0", lambda value: value >= 0)]


@dataclass(frozen=True)
class Weights:
    """Price of one token of each kind, and of a request, in one unit."""

    SPARSE: ClassVar[bool] = True

    prefilled: _Price
    """A token of a prompt that is not cached."""
    cached: _Price
    """One that is."""
    decoded: _Price
    """One that is decoded."""
    unit: Line
    """Of the costs."""
    request: _Price = 0.0
    """Of a request, whatever it reads and decodes."""
    round_trip: _Price = 0.0
    """Tokens that a trace decodes while a request is on its way: under vllm they are wasted at a
    stop, with those that the answer takes."""
    held: _Price = 0.0
    """What a decoded token costs more for each token of its context; `decoded` is then the price
    without any."""
    context: _Price = 0.0
    """Mean context for which the prices were computed, in tokens; 0 where they were not."""
    gpu: Line | None = None
    """Accelerators for which they were computed; null where they were not."""
    model: Line | None = None
    """Model for which they were computed, in words."""
    in_flight: Some | None = None
    """Requests that decode together; null where that is not known."""

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
        """Money for a thousand requests of this mean cost; None where weights are no prices."""
        return cost * 1000 / 1_000_000 if self.unit == MONEY else None


MONEY = "money per million tokens"
"""Unit of weights that are prices."""

SECONDS = "seconds"
"""Unit of weights that were measured."""

PAPER_WEIGHTS = Weights(1.0, PAPER_CACHED_WEIGHT, 1.0, "paper-weighted tokens")
"""The paper's: a cached token counts a tenth of a decoded one (Section "Deployment Cost")."""


@dataclass(frozen=True)
class TokenCounts:
    """Tokens of each kind, and requests; arrays of one shape."""

    decoded: FloatArray
    cached: FloatArray
    prefilled: FloatArray
    requests: FloatArray
    attended: FloatArray
    """Tokens of context, summed over the decoded ones: KV-token-time."""
    headroom: FloatArray | None = None
    """Tokens that thinking could still waste after a stop; None where it does not stream on."""
    price: FloatArray | None = None
    """Cost in prices of its own, where a reply comes from a ladder; None where weights say it."""

    def wasted(self, weights: Weights) -> FloatArray:
        """Tokens decoded in vain while the last probe was on its way."""
        if self.headroom is None:
            return np.zeros_like(self.decoded)
        return np.minimum(self.headroom, weights.round_trip)

    def weighed(self, weights: Weights) -> FloatArray:
        """Cost in the unit of the weights, or in prices of its own."""
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
    """Tokens of full thinking without any probe.

    Arrays of shape (n_questions,).  Under ``last-checkpoint`` thinking is cut at the last budget
    and one answer is written: being cut off is not a saving.
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
    """Counts that the table itself brings; tokens of a ladder are held by several models."""
    return TokenCounts(
        spent.decoded,
        spent.cached,
        spent.prefilled,
        spent.requests,
        attended_by(spent.prefilled + spent.cached, spent.decoded),
        price=spent.price,
    )


def attended_by(before: FloatArray, decoded: FloatArray) -> FloatArray:
    """Context summed over tokens that are decoded after N others."""
    return decoded * before + decoded**2 / 2


def mean_context(table: ProbeTable) -> float:
    """Context of a token that full thinking decodes, on average, in tokens."""
    counts = full_counts(table)
    return float(counts.attended.sum() / counts.decoded.sum())


@dataclass(frozen=True)
class Costing:
    """How costs are counted: in which serving regime, at which weights."""

    serving: Serving = "kv-fork"
    weights: Weights = PAPER_WEIGHTS

    def full(self, table: ProbeTable) -> FloatArray:
        """Cost of full thinking without any probe, shape (n_questions,)."""
        return full_counts(table).weighed(self.weights)


@dataclass(frozen=True)
class Asking:
    """Where a rule forces an answer on its way to a stop."""

    before: bool = True
    """At every position before the stop; a fixed budget asks nothing until it stops."""
    stop_at: int | None = None
    """Position at which everybody is stopped, in thinking tokens: where a stop gives a visible
    answer, none is forced there."""


EVERYWHERE = Asking()
"""An answer is forced at every position."""


def stopped_counts(
    view: ProbeTable, serving: Serving, *, asking: Asking = EVERYWHERE
) -> TokenCounts:
    """Tokens of every question for every probe at which it may stop.

    Parameters
    ----------
    view : ProbeTable
        Every probe in it is made, until the rule stops; under ``last-checkpoint`` it ends with the
        last checkpoint.
    serving : {"vllm", "kv-fork", "prefix-cache", "black-box"}
    asking : Asking
        Where no answer is forced.

    Returns
    -------
    TokenCounts
        Arrays of shape (n_questions, n_probes + 1); the last column never stops.  Entries
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
    Under kv-fork that request is a fork and sends nothing; under vllm it is the only resume.

    After an open cue a server takes up to two requests a probe: the second sees whether the model
    closes its thinking after the newline that ended the answer.  Two are counted for each.

    Under kv-fork a probe is a branch of the one request that there is.  Under vllm a stop wastes
    what is decoded while the probe's answer is, and while the probe is on its way: the former is
    counted as decoded, of the latter the weights know how much it is.
    """
    if view.rungs is not None:  # never stopping is the last column: the reference
        return _of_rungs(view.rungs.spent.each(lambda v: np.column_stack([v, v[:, -1]])))
    if serving not in REGIMES:
        raise CalibrationError(f"serving must be one of {REGIMES}, got {serving!r}")
    # One row stands for all questions of a grid.
    positions = view.positions_at(range(view.n_checkpoints)).astype(np.float64)
    live = view.live  # (n_questions, n_probes)
    asked = asked_at(view, positions, live, asking)
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
        # Reaching the last checkpoint alive, its probe is the answer, counted with those before.
        counted = live[:, -1] & asking.before
        last_answer = np.where(counted, 0.0, view.probe_tokens[:, -1])
        whole = np.minimum(view.trace_tokens, positions[:, -1])
        decoded[:, -1] += whole + last_answer
        attended[:, -1] += attended_by(prefix[:, -1] + suffix, last_answer)
    attended[:, -1] += attended_by(prompt[:, 0], whole)

    if view.visible_tokens is not None:
        decoded[:, :-1] += view.visible_tokens
        attended[:, :-1] += attended_by(prefix, view.visible_tokens)

    # A probe at 0 tokens is the first request; else thinking starts alone and sends the prompt.
    at_once = asked[:, 0] & (positions[:, 0] == 0)
    opens = np.ones((view.n_questions, view.n_checkpoints + 1))
    first = slice(None) if asking.before else slice(0, 1)  # alone, it opens its own stop only
    if serving in ("black-box", "prefix-cache"):
        opens[:, first] = ~at_once[:, None]
    if serving == "kv-fork":
        probe_read, resume_read = np.zeros_like(prefix), np.zeros_like(prefix)
        probe_fill = np.broadcast_to(suffix, prefix.shape)
        resume_fill = np.zeros_like(prefix)
    elif serving == "black-box":
        probe_read, resume_read = np.zeros_like(prefix), np.zeros_like(prefix)
        probe_fill, resume_fill = prefix + suffix, prefix
    else:
        standing = np.floor(np.maximum(prefix - 1, 0) / CACHE_BLOCK) * CACHE_BLOCK
        probe_read = standing.copy()
        if serving == "prefix-cache":  # under vllm, thinking starts with the first probe
            probe_read[at_once, 0] = 0.0  # nothing was sent before
        probe_fill = prefix + suffix - probe_read
        resume_read, resume_fill = standing, prefix - standing
    own = np.full(prefix.shape, float(serving != "kv-fork"))  # requests of a probe, of a resume
    probe_requests = resume_requests = reply_requests = own
    if serving != "kv-fork" and view.closed_by_itself is not None:
        # A server is asked once more, what follows the answer's newline.
        probe_read, probe_fill, probe_requests = 2 * probe_read, 2 * probe_fill, 2 * own
    # The visible answer of a stop is written by a request like the resume that it replaces.
    reply_read, reply_fill = resume_read, resume_fill
    if serving != "kv-fork" and view.on_stop == "answer":
        # Closed at 0 tokens without a probe, it is the first request and no thinking has begun.
        unopened = live[:, 0] & ~asked[:, 0] & (positions[:, 0] == 0)
        reply_read, reply_fill = resume_read.copy(), resume_fill.copy()
        reply_read[unopened, 0], reply_fill[unopened, 0] = 0.0, prompt[unopened, 0]
        opens[unopened, 0] = 0.0
    if serving == "vllm":
        resume_read, resume_fill, resume_requests = (np.zeros_like(prefix) for _ in range(3))
        # Thinking streams on while the probe decodes; what it wrote is thrown away.
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
        # The last probe is the reply: nothing is resumed after it.
        resume_read, resume_fill = resume_read.copy(), resume_fill.copy()
        resume_requests = resume_requests.copy()
        resume_read[:, -1] = resume_fill[:, -1] = resume_requests[:, -1] = 0.0
    cached = _along(probe_read, resume_read, asked, asking)
    prefilled = _along(probe_fill, resume_fill, asked, asking) + opens * prompt
    requests = _along(probe_requests, resume_requests, asked, asking) + opens
    if view.on_stop == "answer":
        cached[:, :-1] += np.where(live, reply_read, 0.0)
        prefilled[:, :-1] += np.where(live, reply_fill, 0.0)
        requests[:, :-1] += np.where(live, reply_requests, 0.0)
    return TokenCounts(decoded, cached, prefilled, requests, attended, headroom)


def asked_at(
    view: ProbeTable, positions: NDArray[np.float64], live: NDArray[np.bool_], asking: Asking
) -> NDArray[np.bool_]:
    """Where an answer would be forced if the rule came there; (n_questions, n_probes)."""
    if view.on_stop == "probe":
        return live
    if not asking.before:
        return np.zeros_like(live)
    return live if asking.stop_at is None else live & (positions != asking.stop_at)


def _so_far(values: NDArray[np.float64], asking: Asking) -> FloatArray:
    """What probes 0…j make together, (n_questions, n_probes + 1); last column: all of them.

    Where nothing is asked before the stop, probe j alone, and nothing in the last column.
    """
    out = np.zeros((values.shape[0], values.shape[1] + 1))
    if asking.before:
        np.cumsum(values, axis=1, out=out[:, :-1])
        out[:, -1] = out[:, -2]
    else:
        out[:, :-1] = values
    return out


def _along(
    probe: NDArray[np.float64],
    resume: NDArray[np.float64],
    asked: NDArray[np.bool_],
    asking: Asking,
) -> FloatArray:
    """Sum over probes 0…j and the resumes between them; last column: all of both."""
    out = _so_far(np.where(asked, probe, 0.0), asking)
    if asking.before:
        resume = np.where(asked, resume, 0.0)
        resumes = np.cumsum(resume, axis=1)
        out[:, :-1] += resumes - resume
        out[:, -1] += resumes[:, -1]
    return out
