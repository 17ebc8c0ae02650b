"""Traces of a batch, drawn one token at a time over a cache that is kept.

A batch can be advanced to a budget, probed there, and advanced again.  Once half of its rows are
done, they leave it and take their part of the cache with them.
Knows thinking, its closer and the visible answer; nothing of probes.
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
from stopadvisor.engines.recorded import RecordedIds

__all__ = ["Finished", "Kept", "Limits", "TraceBatch", "read_traces"]

_SMALLEST_SPLIT = 8
"""Batches this small run on until all rows are done: splitting them costs more than it saves."""


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
    """Column of the first thinking token, the same for every row."""


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


class TraceBatch:
    """Prompts being continued together, with padding on the left that the model never sees.

    After every step the cache holds exactly the prompt and the generated tokens, so that a probe
    can branch off at any point and the trace continue unmodified.
    """

    def __init__(
        self,
        runner: Runner,
        prompts: list[list[int]],
        sampler: Sampler,
        limits: Limits,
        pad_id: int,
    ) -> None:
        n_rows = len(prompts)
        self._runner = runner
        self._sampler = sampler
        self._limits = limits
        self._max_think = limits.max_think
        self._is_stop = np.zeros(max(limits.stop_ids, default=0) + 1, dtype=np.bool_)
        self._is_stop[list(limits.stop_ids)] = True
        # A closer may contain an id that ends generation elsewhere.
        self._is_stop_thinking = self._is_stop.copy()
        self._is_stop_thinking[[i for i in limits.closer if i < len(self._is_stop)]] = False
        self.rows = np.arange(n_rows)
        self.steps = 0
        self._ids = np.zeros((n_rows, 64), dtype=np.int64)
        self._trace = np.full(n_rows, -1)  # thinking tokens, -1 while thinking
        self._closed = np.zeros(n_rows, dtype=np.bool_)
        self._cut = np.zeros(n_rows, dtype=np.bool_)
        self._total = np.full(n_rows, -1)  # -1 until done
        cache, pads, self._logits = runner.prefill(prompts, pad_id)
        self._kept = Kept(cache, pads, cache.columns)
        self._mask = _Padding(pads, cache.columns, runner)

    @property
    def done(self) -> NDArray[np.bool_]:
        """Which of the present rows are done."""
        return self._total >= 0

    @property
    def thinking(self) -> NDArray[np.bool_]:
        """Which of the present rows still think."""
        return self._trace < 0

    @property
    def kept(self) -> Kept:
        """The cache as it stands, for probing between two steps."""
        return self._kept

    def advance(self, steps: int) -> None:
        """Generate until `steps` tokens stand behind each prompt or all rows are done."""
        while self.steps < steps and not self.done.all():
            self._step()

    def finished(self, on_tokens: Callable[[int], None] | None = None) -> Iterator[Finished]:
        """Generate to the end and yield the rows as they leave the batch.

        `on_tokens` is called after each step with the number of rows that got a token that counts.
        """
        while len(self.rows):
            live = int((~self.done).sum())
            if live:
                self._step()
                if on_tokens is not None:
                    on_tokens(live)
            done = self.done
            if done.all():
                yield self._leave(np.arange(len(self.rows)))
            elif len(done) >= _SMALLEST_SPLIT and 2 * done.sum() >= len(done):
                yield self._leave(np.flatnonzero(done))

    def _step(self) -> None:
        tokens = self._sampler.draw(self._logits, self.steps)
        self._record(tokens.cpu().numpy())
        if self.done.all():
            return  # what would be fed next is never used
        kept = self._kept
        positions = kept.start + self.steps - 1 - kept.pads
        mask, key_positions = self._mask.for_columns(kept.cache.columns + 1)
        logits = self._runner.forward(
            tokens[:, None], positions[:, None], kept.cache, mask, key_positions
        )
        self._logits = logits[:, -1]

    def _record(self, tokens: NDArray[np.int64]) -> None:
        """Write down one token per row and see what is over now."""
        at, closer, limits = self.steps, self._limits.closer, self._limits
        if at == self._ids.shape[1]:
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)], axis=1)
        self._ids[:, at] = tokens
        self.steps = at + 1
        begun = self.steps - len(closer)  # thinking tokens, if the closer is complete now

        thinking, answering = self._trace < 0, (self._trace >= 0) & (self._total < 0)
        closed = np.zeros_like(thinking)
        if begun >= 0:
            tail = self._ids[:, begun : self.steps]
            closed = thinking & (tail == closer).all(axis=1) & (begun <= self._max_think)
        stopped = thinking & ~closed & _among(tokens, self._is_stop_thinking)
        ended = stopped & (at <= self._max_think)
        # The closer may begin right behind the last token that is allowed, so it is awaited.
        cut = thinking & ~closed & ~ended & (stopped | (begun >= self._max_think))
        self._trace[closed] = begun
        self._trace[ended] = at
        self._trace[cut] = self._max_think[cut]
        self._closed |= closed
        self._cut |= cut
        self._total[ended] = self.steps
        self._total[cut] = self._trace[cut]

        visible = self.steps - self._trace - len(closer)
        over = answering & (_among(tokens, self._is_stop) | (visible >= limits.answer_cap))
        self._total[over] = self.steps

    def _leave(self, leaving: NDArray[np.int64]) -> Finished:
        """Take rows out of the batch, with the columns their probes can need."""
        kept, n_rows = self._kept, len(self.rows)
        stop = kept.start + int(self._trace[leaving].max())
        staying = np.setdiff1d(np.arange(n_rows), leaving)
        if len(staying):
            index, rest = (torch.from_numpy(i).to(kept.pads.device) for i in (leaving, staying))
            left = int(kept.pads[index].min())
            left_rest = int(kept.pads[rest].min())
            cache = kept.cache.split_off(
                index, slice(left, stop), rest, slice(left_rest, kept.cache.columns)
            )
            taken = Kept(cache, kept.pads[index] - left, kept.start - left)
            self._kept = Kept(kept.cache, kept.pads[rest] - left_rest, kept.start - left_rest)
            self._logits = self._logits[rest]
        else:
            kept.cache.truncate(stop)
            taken = kept
            self._kept = Kept(KeptCache(), kept.pads[:0], 0)
        group = Finished(
            rows=self.rows[leaving],
            ids=self._ids[leaving, : self.steps],
            trace_tokens=self._trace[leaving],
            closed=self._closed[leaving],
            cut=self._cut[leaving],
            total_tokens=self._total[leaving],
            kept=taken,
        )
        self._keep(staying)
        if len(staying):
            self._mask = _Padding(self._kept.pads, self._kept.cache.columns, self._runner)
        return group

    def _keep(self, staying: NDArray[np.int64]) -> None:
        """Forget all rows but these, though not yet their cache."""
        self.rows, self._ids = self.rows[staying], self._ids[staying]
        self._trace, self._total = self._trace[staying], self._total[staying]
        self._closed, self._cut = self._closed[staying], self._cut[staying]
        self._max_think = self._max_think[staying]
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


def read_traces(
    runner: Runner, prompts: list[list[int]], traces: Sequence[RecordedIds], pad_id: int
) -> Finished:
    """Read prompts with recorded traces into a kept cache: one pass over all tokens, no steps."""
    thinking = [list(trace.ids[: trace.thinking]) for trace in traces]
    cache, pads, _ = runner.prefill(prompts, pad_id, behind=thinking)
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
