"""One forward pass over the kept cache: masks in, logits out.

The one place that calls the model.  Knows tokens, positions and masks; not what a trace or a probe
is.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from stopadvisor.engines.hf.cache import Kept, KeptCache, additive, fold

__all__ = ["Runner"]

_CHUNK = 512
"""Prompt tokens per forward pass, so that the mask of a long prompt stays small."""


@dataclass(frozen=True)
class Runner:
    """A model that reads and writes a `KeptCache`."""

    model: Any = field(repr=False)
    groups: int
    """Query heads per key/value head."""
    window: int | None = None
    """Length of the model's sliding window, where any layer has one."""
    windowed: bool = False
    """All layers have that window; otherwise some see everything."""

    @property
    def device(self) -> torch.device:
        """Where the model takes its input."""
        device = self.model.device
        assert isinstance(device, torch.device)
        return device

    @property
    def dtype(self) -> torch.dtype:
        """The model's number format, which is the masks' as well."""
        dtype = self.model.dtype
        assert isinstance(dtype, torch.dtype)
        return dtype

    @cached_property
    def cache_name(self) -> str:
        """What the model's `forward` calls its cache; ``past_key_values`` before 5.24."""
        known = inspect.signature(self.model.forward).parameters
        return "cache" if "cache" in known else "past_key_values"

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        cache: KeptCache,
        mask: Tensor | None,
        key_positions: Tensor,
        *,
        last: Tensor | int = 1,
        folded: bool = True,
    ) -> Tensor:
        """Run the model over new tokens and extend the cache by them.

        Returns logits of shape (rows, wanted, vocabulary), in the model's number format.

        Parameters
        ----------
        ids, positions : shape (rows, queries)
            New tokens, and each one's place in its own sequence.
        cache
            Gains `queries` columns.
        mask : shape (rows, queries, columns)
            Additive mask over all columns, the new ones included; None when all is seen.
        key_positions : shape (rows, columns)
            Each column's place in its sequence, for layers that have a sliding window.
        last
            Queries whose logits are wanted: their indices, or how many from the end.
        folded
            Lay query heads that share keys out as further queries; wasteful for prompts only.
        """

        def shaped(mask: Tensor) -> Tensor:
            return fold(mask, self.groups) if folded else mask[:, None]

        masks: Any = None if mask is None else shaped(mask)
        if self.window is not None:
            assert mask is not None
            far = positions[:, :, None] - key_positions[:, None, :] >= self.window
            near = shaped(mask.masked_fill(far, torch.finfo(mask.dtype).min))
            # Two kinds of layers take a mask each, under transformers' names for the kinds.
            both = {"full_attention": masks, "sliding_attention": near}
            masks = near if self.windowed else both
        logits = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=masks,
            use_cache=True,
            logits_to_keep=last,
            **{self.cache_name: cache},
        ).logits
        assert isinstance(logits, Tensor)
        return logits

    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        pad_id: int,
        texts: Sequence[Sequence[int]] | None = None,
    ) -> tuple[Kept, Tensor]:
        """Read prompts of any length, padded on the left.

        `texts` that follow them all begin in one column, and are padded on the right.  Returns the
        logits of the last column too, of shape (rows, vocabulary).
        """
        texts = texts or [[]] * len(prompts)
        begun, longest = max(map(len, prompts)), max(map(len, texts))
        columns = begun + longest
        padded = [
            [pad_id] * (begun - len(prompt)) + [*prompt, *text] + [pad_id] * (longest - len(text))
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        ids = torch.tensor(padded, device=self.device)  # (rows, columns)
        pads = torch.tensor([begun - len(p) for p in prompts], device=self.device)
        places = torch.arange(columns, device=self.device)
        key_positions = places[None, :] - pads[:, None]
        cache = KeptCache()
        for start in range(0, columns, _CHUNK):
            stop = min(start + _CHUNK, columns)
            causal = places[start:stop, None] >= places[None, :stop]  # (queries, columns)
            logits = self.forward(
                ids[:, start:stop],
                key_positions[:, start:stop].clamp_min(0),
                cache,
                additive(causal[None] & (key_positions[:, None, :stop] >= 0), self.dtype),
                key_positions[:, :stop],
                folded=False,
            )
        return Kept(cache, pads, begun), logits[:, -1]
