"""One batch of traces, drawn a token at a time over a kept cache, for probing and for answering.

All rows take the same step.  Between two steps the cache holds exactly the prompts and what was
drawn after them, so that probes can branch off anywhere.  Rows leave the batch when they are done,
with their cache if it is still to be probed.  Knows thinking, its closer and the visible answer; no
probes and no policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stopadvisor.engines.hf.cache import KeptCache, additive
from stopadvisor.engines.hf.runner import Runner
from stopadvisor.engines.hf.sampler import Sampler
from stopadvisor.engines.raw_trace import RecordedIds

__all__ = ["SMALLEST_SPLIT", "Finished", "Kept", "Limits", "RollingBatch", "read_recorded"]

SMALLEST_SPLIT = 8
"""Rows of the smallest batch that is split when half of it is done; smaller ones run on as they
are, because splitting copies the cache."""

_ROW = np.dtype(
    [
        ("number", np.int64),  # of its prompt
        ("thinking", np.int64),  # its thinking tokens; -1 while it thinks
        ("total", np.int64),  # its tokens that count; -1 until it is done
        ("max_think", np.int64),
        ("closed", np.bool_),  # it closed its thinking
        ("cut", np.bool_),  # its thinking was cut at its limit
    ]
)
"""What is known of a row."""


@dataclass(frozen=True)
class Limits:
    """When a trace and its visible answer are over."""

    closer: tuple[int, ...]
    stop_ids: tuple[int, ...]
    max_think: NDArray[np.int64]  # (rows,)
    """Most thinking tokens of each row."""
    answer_cap: int

    @property
    def steps(self) -> int:
        """Most tokens any row can generate."""
        return int(self.max_think.max()) + len(self.closer) + self.answer_cap


@dataclass(frozen=True)
class Kept:
    """A cache whose rows are prompts and traces, for branches to grow on."""

    cache: KeptCache
    pads: Tensor  # (rows,)
    """Columns of padding before each prompt."""
    start: int
    """Column of the first token drawn at step 0."""


@dataclass(frozen=True)
class Finished:
    """Rows that are done, with what they generated and their cache."""

    rows: NDArray[np.int64]  # (rows,)
    """Which prompts of the batch these are."""
    ids: NDArray[np.int64]  # (rows, steps)
    """Generated tokens: thinking, closer, visible answer, ending token."""
    trace_tokens: NDArray[np.int64]  # (rows,)
    closed: NDArray[np.bool_]  # (rows,)
    """The model closed its thinking."""
    cut: NDArray[np.bool_]  # (rows,)
    """Thinking was cut at its limit."""
    total_tokens: NDArray[np.int64]  # (rows,)
    """Generated tokens that count: up to the ending one, or up to the cut."""
    kept: Kept


class RollingBatch:
    """Prompts being continued together, padded on the left where the model never looks."""

    def __init__(
        self,
        runner: Runner,
        prompts: Sequence[list[int]],
        sampler: Sampler,
        limits: Limits,
        pad_id: int,
    ) -> None:
        self._runner = runner
        self._sampler = sampler
        self._closer, self._answer_cap = limits.closer, limits.answer_cap
        self._pad_id = pad_id
        self._is_stop = np.zeros(max(limits.stop_ids, default=0) + 1, dtype=np.bool_)
        self._is_stop[list(limits.stop_ids)] = True
        # A closer may contain an id that ends generation elsewhere.
        self._is_stop_thinking = self._is_stop.copy()
        self._is_stop_thinking[[i for i in limits.closer if i < len(self._is_stop)]] = False
        self._steps = 0
        self._rows = np.zeros(len(prompts), dtype=_ROW)
        self._rows["number"] = np.arange(len(prompts))
        self._rows["max_think"] = limits.max_think
        self._rows["thinking"] = self._rows["total"] = -1
        self._ids = np.zeros((len(prompts), 64), dtype=np.int64)
        cache, pads, self._logits = runner.prefill(list(prompts), pad_id)
        self._kept = Kept(cache, pads, cache.columns)
        self._mask = _Padding(pads, cache.columns, runner)

    # --- What the present rows have drawn ---

    @property
    def done(self) -> NDArray[np.bool_]:
        """Which rows are done."""
        return self._rows["total"] >= 0

    @property
    def steps(self) -> int:
        """Steps so far: tokens of each row that is not done."""
        return self._steps

    @property
    def trace_tokens(self) -> NDArray[np.int64]:
        """Thinking tokens of each row whose thinking is over, else -1."""
        return self._rows["thinking"]

    @property
    def total_tokens(self) -> NDArray[np.int64]:
        """Tokens of each row that is done, else -1."""
        return self._rows["total"]

    @property
    def closed(self) -> NDArray[np.bool_]:
        """Which rows have closed their thinking."""
        return self._rows["closed"]

    @property
    def cut(self) -> NDArray[np.bool_]:
        """Which rows' thinking was cut at its limit."""
        return self._rows["cut"]

    @property
    def kept(self) -> Kept:
        """The cache as it stands, for probing between two steps."""
        return self._kept

    def generated(self, position: int, start: int = 0) -> list[int]:
        """Return the ids a row drew, from its `start`-th on, those after its end included."""
        ids: list[int] = self._ids[position, start : self._steps].tolist()
        return ids

    # --- Drawing ---

    def advance(self, steps: int = 1) -> None:
        """Draw `steps` tokens in each row, or fewer once all rows are done."""
        for _ in range(steps):
            if self.done.all():
                return
            self._step()

    def finished(self, on_tokens: Callable[[int], None] | None = None) -> Iterator[Finished]:
        """Draw to the end and yield rows as they leave the batch, with their cache.

        `on_tokens` is called after each step with the number of rows that got a token that counts.
        """
        while len(self._rows):
            live = int((~self.done).sum())
            if live:
                self._step()
                if on_tokens is not None:
                    on_tokens(live)
            done = self.done
            if done.all() or (len(done) >= SMALLEST_SPLIT and 2 * done.sum() >= len(done)):
                yield self._leave(done)

    def _step(self) -> None:
        tokens = self._sampler.draw(self._logits, self._steps)
        self._record(tokens.cpu().numpy())
        if self.done.all():
            return  # what would be fed next is never used
        kept = self._kept
        positions = kept.start + self._steps - 1 - kept.pads
        mask, key_positions = self._mask.for_columns(kept.cache.columns + 1)
        logits = self._runner.forward(
            tokens[:, None], positions[:, None], kept.cache, mask, key_positions
        )
        self._logits = logits[:, -1]

    def _record(self, tokens: NDArray[np.int64]) -> None:
        """Write down one token per row and see what is over now."""
        if self._steps == self._ids.shape[1]:
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)], axis=1)
        self._ids[:, self._steps] = tokens
        self._steps += 1
        rows, steps, size = self._rows, self._steps, len(self._closer)
        begun = steps - size  # thinking tokens, if the closer is complete now

        thinking = rows["thinking"] < 0
        answering = ~thinking & (rows["total"] < 0)
        closed = np.zeros_like(thinking)
        if begun >= 0:
            closed = (self._ids[:, begun:steps] == self._closer).all(axis=1)
            closed &= thinking & (begun <= rows["max_think"])
        stopped = thinking & ~closed & _among(tokens, self._is_stop_thinking)
        ended = stopped & (steps - 1 <= rows["max_think"])
        # The closer may begin right after the last token that is allowed, so it is awaited.
        cut = thinking & ~closed & ~ended & (stopped | (begun >= rows["max_think"]))
        rows["thinking"][closed], rows["thinking"][ended] = begun, steps - 1
        rows["thinking"][cut] = rows["max_think"][cut]
        rows["closed"] |= closed
        rows["cut"] |= cut

        visible = begun - rows["thinking"]
        over = answering & (_among(tokens, self._is_stop) | (visible >= self._answer_cap))
        over |= ended
        rows["total"][over] = steps
        rows["total"][cut] = rows["thinking"][cut]

    # --- Going ---

    def stop(self, positions: Sequence[int]) -> None:
        """Let rows be done where they stand."""
        index = list(positions)
        thinking = self.trace_tokens[index]
        self._rows["total"][index] = self._steps
        self._rows["thinking"][index] = np.where(thinking < 0, self._steps, thinking)

    def _leave(self, leaving: NDArray[np.bool_]) -> Finished:
        """Take rows, with the columns that their probes can need."""
        kept, gone, staying = self._kept, np.flatnonzero(leaving), np.flatnonzero(~leaving)
        rows, ids = self._rows[gone], self._ids[gone, : self._steps]
        stop = kept.start + int(rows["thinking"].max())
        if len(staying):
            index, rest = (torch.from_numpy(i).to(kept.pads.device) for i in (gone, staying))
            left, left_rest = int(kept.pads[index].min()), int(kept.pads[rest].min())
            cache = kept.cache.split_off(
                index, slice(left, stop), rest, slice(left_rest, kept.cache.columns)
            )
            taken = Kept(cache, kept.pads[index] - left, kept.start - left)
            self._kept = Kept(kept.cache, kept.pads[rest] - left_rest, kept.start - left_rest)
            self._logits = self._logits[rest]
            self._mask = _Padding(self._kept.pads, kept.cache.columns, self._runner)
        else:
            kept.cache.truncate(stop)
            taken = kept
            self._kept = Kept(KeptCache(), kept.pads[:0], 0)
        self._keep(staying)
        return Finished(
            rows=rows["number"],
            ids=ids,
            trace_tokens=rows["thinking"],
            closed=rows["closed"],
            cut=rows["cut"],
            total_tokens=rows["total"],
            kept=taken,
        )

    def drop(self, leaving: NDArray[np.bool_]) -> None:
        """Drop rows with their cache; at least one row stays."""
        staying = np.flatnonzero(~leaving)
        kept, index = self._kept, torch.from_numpy(staying).to(self._kept.pads.device)
        self._keep(staying)
        self._logits = self._logits[index]
        kept.cache.keep(index)
        self._kept = Kept(kept.cache, kept.pads[index], kept.start)
        self._mask = _Padding(self._kept.pads, kept.cache.columns, self._runner)

    def _keep(self, staying: NDArray[np.int64]) -> None:
        """Forget all rows but these, though not yet their cache."""
        self._rows, self._ids = self._rows[staying], self._ids[staying]
        self._sampler.keep(staying)


class _Padding:
    """The mask of single new tokens: everything but the padding, grown ahead of need."""

    def __init__(self, pads: Tensor, columns: int, runner: Runner) -> None:
        self._pads = pads
        self._runner = runner
        self._needed = runner.window is not None or bool(pads.any())
        self._mask, self._positions = self._build(columns + 256)

    def _build(self, columns: int) -> tuple[Tensor, Tensor]:
        places = torch.arange(columns, device=self._pads.device)
        positions = places[None, :] - self._pads[:, None]  # (rows, columns)
        return additive(positions >= 0, self._runner.dtype)[:, None], positions

    def for_columns(self, columns: int) -> tuple[Tensor | None, Tensor | None]:
        """Return mask and key positions for this many columns; None when nothing is hidden."""
        if not self._needed:
            return None, None
        if columns > self._mask.shape[-1]:
            self._mask, self._positions = self._build(2 * columns)
        return self._mask[:, :, :columns], self._positions[:, :columns]


def _among(tokens: NDArray[np.int64], table: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Look ids up in a table that may be shorter than the vocabulary."""
    inside = tokens < len(table)
    return inside & table[np.where(inside, tokens, 0)]


def read_recorded(
    runner: Runner, prompts: list[list[int]], traces: Sequence[RecordedIds], pad_id: int
) -> Finished:
    """Read prompts with recorded traces into a kept cache: one pass over all tokens, no steps."""
    thinking = [list(trace.ids[: trace.thinking]) for trace in traces]
    cache, pads, _ = runner.prefill(prompts, pad_id, texts=thinking)
    n_rows, longest = len(traces), max(len(trace.ids) for trace in traces)
    ids = np.zeros((n_rows, longest), dtype=np.int64)
    for row, trace in zip(ids, traces, strict=True):
        row[: len(trace.ids)] = trace.ids
    return Finished(
        rows=np.arange(n_rows),
        ids=ids,
        trace_tokens=np.array([trace.thinking for trace in traces]),
        closed=np.array([trace.closed for trace in traces]),
        cut=np.array([trace.cut for trace in traces]),
        total_tokens=np.array([len(trace.ids) for trace in traces]),
        kept=Kept(cache, pads, max(map(len, prompts))),
    )
