"""A batch whose rows are replaced one by one while the others are drawn.

A request that stops early is worth its time only if its place is taken at once: a batch that waits
for its longest row saves nothing.  Rows join as prompts padded on the left up to the present
column, so that all rows still take the same step; the tokens of a row are counted from the step at
which it joined.  Knows no probes and no policy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stopadvisor.engines.hf.cache import KeptCache, KeptLayer
from stopadvisor.engines.hf.runner import Runner
from stopadvisor.engines.hf.sampler import Sampler
from stopadvisor.engines.hf.traces import Kept, Limits, TraceBatch

__all__ = ["RollingBatch", "RollingSampler"]


class RollingSampler(Sampler):
    """A sampler that rows may join; each row's numbers begin at the step at which it joined."""

    def join(self, other: Sampler, step: int) -> None:
        """Append the rows of another sampler, whose first token is drawn at `step`."""
        mine, theirs = self._streams, other._streams
        width = max(mine.shape[1], step + theirs.shape[1])
        streams = np.zeros((len(mine) + len(theirs), width))
        streams[: len(mine), : mine.shape[1]] = mine
        streams[len(mine) :, step : step + theirs.shape[1]] = theirs
        self._streams = streams
        if self._seen is not None and other._seen is not None:
            self._seen = torch.cat([self._seen, other._seen])

    def forget(self, steps: int) -> None:
        """Drop the first so many steps, and count the rest from 0."""
        self._streams = self._streams[:, steps:]


class RollingBatch(TraceBatch):
    """Prompts being continued together, with others taking the places of those that are done.

    As a `TraceBatch`, but `rows` holds names of the prompts in place of positions.
    """

    _sampler: RollingSampler

    def __init__(
        self,
        runner: Runner,
        prompts: list[list[int]],
        rows: Sequence[int],
        sampler: RollingSampler,
        limits: Limits,
        pad_id: int,
    ) -> None:
        super().__init__(runner, prompts, sampler, limits, pad_id)
        self.rows = np.array(rows)
        self._pad_id = pad_id
        self._begin = np.zeros(len(prompts), dtype=np.int64)  # step at which each row joined

    # --- What the present rows have generated, each counted from its own beginning ---

    @property
    def ages(self) -> NDArray[np.int64]:
        """Steps since each row joined: its generated tokens, while it is not over."""
        return self.steps - self._begin

    @property
    def trace_tokens(self) -> NDArray[np.int64]:
        """Thinking tokens of each row whose thinking is over, else -1."""
        return np.where(self._trace < 0, -1, self._trace - self._begin)

    @property
    def total_tokens(self) -> NDArray[np.int64]:
        """Generated tokens of each row that is done, else -1."""
        return np.where(self._total < 0, -1, self._total - self._begin)

    @property
    def closed(self) -> NDArray[np.bool_]:
        """Which rows have closed their thinking."""
        return self._closed

    @property
    def cut(self) -> NDArray[np.bool_]:
        """Which rows' thinking was cut at its limit."""
        return self._cut

    def generated(self, position: int, start: int = 0) -> list[int]:
        """Return the ids behind a row's prompt, what it drew after its end included.

        With `start` only those behind the first so many.
        """
        begin = self._begin[position] + start
        ids: list[int] = self._ids[position, begin : self.steps].tolist()
        return ids

    def offset(self, position: int) -> int:
        """Columns between `kept.start` and a row's first thinking token."""
        return int(self._begin[position])

    # --- Coming and going ---

    def stop(self, positions: Sequence[int]) -> None:
        """Let rows be done where they stand."""
        index = list(positions)
        self._total[index] = self.steps
        self._trace[index] = np.where(self._trace[index] < 0, self.steps, self._trace[index])

    def replace(
        self,
        leaving: NDArray[np.bool_],
        rows: Sequence[int] = (),
        prompts: Sequence[list[int]] = (),
        sampler: Sampler | None = None,
        max_think: NDArray[np.int64] | None = None,
    ) -> None:
        """Drop rows and take in others behind them, in one pass over the cache.

        At least one row stays.
        """
        staying = np.flatnonzero(~leaving)
        index = torch.from_numpy(staying).to(self._kept.pads.device)
        self._keep(staying)
        self._begin = self._begin[staying]
        self._logits = self._logits[index]

        kept = self._kept
        left = int(kept.pads[index].min())
        pads, start = kept.pads[index] - left, kept.start - left
        columns = kept.cache.columns - left
        new: KeptCache | None = None
        if prompts:
            assert sampler is not None
            assert max_think is not None
            new, new_pads, new_logits = self._runner.prefill(list(prompts), self._pad_id)
            columns, before = max(columns, new.columns), columns
            pads, start = pads + (columns - before), start + (columns - before)
            pads = torch.cat([pads, new_pads + (columns - new.columns)])
            self._logits = torch.cat([self._logits, new_logits])
            self._take_in(rows, sampler, max_think)
        for i, layer in enumerate(kept.cache.layers):
            fresh = None if new is None else new.layers[i]
            kept.cache.layers[i] = _rebuilt(layer, index, left, fresh, columns)
        self._kept = Kept(kept.cache, pads, start)
        self._forget(int(self._begin.min()))
        self._mask = type(self._mask)(self._kept.pads, columns, self._runner)

    def _take_in(self, rows: Sequence[int], sampler: Sampler, max_think: NDArray[np.int64]) -> None:
        count, begin = len(rows), self.steps
        self.rows = np.concatenate([self.rows, np.array(rows)])
        # No token has id -1: a closer cannot reach back behind a row's beginning.
        blank = np.full((count, self._ids.shape[1]), -1)
        self._ids = np.concatenate([self._ids, blank])
        self._trace = np.concatenate([self._trace, np.full(count, -1)])
        self._total = np.concatenate([self._total, np.full(count, -1)])
        self._closed = np.concatenate([self._closed, np.zeros(count, dtype=np.bool_)])
        self._cut = np.concatenate([self._cut, np.zeros(count, dtype=np.bool_)])
        self._max_think = np.concatenate([self._max_think, begin + max_think])
        self._begin = np.concatenate([self._begin, np.full(count, begin)])
        self._sampler.join(sampler, begin)

    def _forget(self, steps: int) -> None:
        """Count steps from the oldest row's beginning, so that they do not grow for ever."""
        self.steps -= steps
        self._kept = Kept(self._kept.cache, self._kept.pads, self._kept.start + steps)
        self._begin = self._begin - steps
        self._max_think = self._max_think - steps
        self._trace = np.where(self._trace < 0, -1, self._trace - steps)
        self._total = np.where(self._total < 0, -1, self._total - steps)
        self._ids = self._ids[:, steps:]
        self._sampler.forget(steps)


def _rebuilt(
    layer: KeptLayer, rows: Tensor, left: int, new: KeptLayer | None, columns: int
) -> KeptLayer:
    """Copy the rows that stay, from column `left` on, and put new ones below, all flush right."""
    rows = rows.to(layer.keys.device)
    count = len(rows) + (0 if new is None else new.keys.shape[0])
    states = []
    for old, fresh in (
        (layer.keys, None if new is None else new.keys),
        (layer.values, None if new is None else new.values),
    ):
        # Zeros, because what is masked is still multiplied: by zero, and that must not be NaN.
        whole = old.new_zeros((count, old.shape[1], columns, old.shape[3]))
        whole[: len(rows), :, columns - (old.shape[2] - left) :] = old[rows, :, left:]
        if fresh is not None:
            whole[len(rows) :, :, columns - fresh.shape[2] :] = fresh
        states.append(whole)
    rebuilt = KeptLayer()
    rebuilt.update(states[0], states[1])
    return rebuilt
