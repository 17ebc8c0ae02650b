"""One batch of traces, drawn a token at a time over a kept cache, for probing and for answering.

All rows take the same step.  Between two steps the cache holds exactly the prompts and what was
drawn after them, so that probes can branch off anywhere.  Rows leave the batch when they are over,
with their cache if it is still to be probed.  Knows no probes and no policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from stopadvisor.engines.hf.cache import Kept, KeptCache, additive
from stopadvisor.engines.hf.runner import Runner
from stopadvisor.engines.hf.sampler import Sampler
from stopadvisor.engines.trace import Trace

__all__ = ["Finished", "RollingBatch"]

_SMALLEST_SPLIT = 8
"""Rows of the smallest batch that is split when half of it is over; smaller ones run on as they
are, because splitting copies the cache."""


@dataclass(frozen=True)
class Finished:
    """Traces that are over, and the rows of a cache that hold them."""

    traces: list[Trace]
    kept: Kept


class RollingBatch:
    """Prompts being continued together, padded on the left where the model never looks."""

    def __init__(
        self, runner: Runner, traces: Sequence[Trace], sampler: Sampler, pad_id: int
    ) -> None:
        self._runner = runner
        self._sampler = sampler
        self.traces = list(traces)
        """By row; what comes after the end of one is not added to it."""
        self.steps = 0
        """Tokens drawn after each prompt."""
        kept, self._logits = runner.prefill([t.prompt_ids for t in traces], pad_id)
        self._keep(kept)

    def _keep(self, kept: Kept) -> None:
        self.kept = kept
        """The cache as it stands, for probing between two steps."""
        # Kernels are faster without a mask.
        self._is_masked = self._runner.window is not None or bool(kept.pads.any())

    @property
    def over(self) -> NDArray[np.bool_]:
        """Which rows are over, shape (rows,)."""
        return np.array([trace.end.over for trace in self.traces], dtype=np.bool_)

    def is_split_worthwhile(self) -> bool:
        """Whether enough rows are over that it pays to let them leave."""
        over = self.over
        return len(over) >= _SMALLEST_SPLIT and 2 * int(over.sum()) >= len(over)

    def step(self) -> None:
        """Draw a token in each row."""
        tokens = self._sampler.draw(self._logits, self.steps)
        for trace, token in zip(self.traces, tokens.tolist(), strict=True):
            if not trace.end.over:
                trace.ids.append(token)
                trace.end.see(trace.ids)
        self.steps += 1
        if self.over.all():
            return  # what would be fed next is never used
        kept = self.kept
        places = torch.arange(kept.cache.columns + 1, device=kept.pads.device)
        key_positions = places[None, :] - kept.pads[:, None]
        mask = additive(key_positions >= 0, self._runner.dtype)[:, None]
        logits = self._runner.forward(
            tokens[:, None],
            key_positions[:, -1:],
            kept.cache,
            mask if self._is_masked else None,
            key_positions,
        )
        self._logits = logits[:, -1]

    def finished(self, on_tokens: Callable[[int], None] | None = None) -> Iterator[Finished]:
        """Draw to the end and yield rows as they leave the batch, with their cache.

        `on_tokens` is called after each step with the number of rows that got a token.
        """
        while self.traces:
            if live := int((~self.over).sum()):
                self.step()
                if on_tokens is not None:
                    on_tokens(live)
            if self.over.all() or self.is_split_worthwhile():
                yield self._leave()

    def _leave(self) -> Finished:
        """Take the rows that are over, with the columns that their probes can need."""
        over, kept = self.over, self.kept
        gone = [trace for trace in self.traces if trace.end.over]
        stop = kept.start + max(trace.end.thinking for trace in gone)
        if over.all():
            self.traces = []
            self._keep(Kept(KeptCache(), kept.pads[:0], 0))  # frees the memory with what is taken
            return Finished(gone, Kept(kept.cache.fork(stop), kept.pads, kept.start))
        staying = np.flatnonzero(~over)
        taken, rest = kept.split((np.flatnonzero(over), stop), (staying, kept.cache.columns))
        self._go_on(staying, rest)
        return Finished(gone, taken)

    def drop(self) -> None:
        """Drop rows that are over, with their cache; at least one row stays."""
        staying = np.flatnonzero(~self.over)
        (rest,) = self.kept.split((staying, self.kept.cache.columns))
        self._go_on(staying, rest)

    def _go_on(self, staying: NDArray[np.int64], kept: Kept) -> None:
        self.traces = [self.traces[row] for row in staying.tolist()]
        self._logits = self._logits[torch.from_numpy(staying).to(self._logits.device)]
        self._keep(kept)
        self._sampler.keep(staying)
