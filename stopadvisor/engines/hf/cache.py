"""The KV cache that branches share, the attention that reads it in place, and the forward pass.

One buffer per layer holds a batch of left-padded prompts, the tokens generated after them and,
during a probe, those of its branches.  Appending writes into the buffer and a fork shares it, so
branches neither copy nor recompute their prefix.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache, DynamicLayer
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from stopadvisor.ground.errors import ModelError

__all__ = ["KeptCache", "Runner", "additive", "register_attention"]

_ATTENTION = "stopadvisor_kept"
"""Name under which `attend` is registered with transformers."""

_GROWTH = 1.25
_ALIGN = 64
_CHUNK = 512
"""Prompt tokens per forward pass; limits the size of the mask."""


class KeptLayer(DynamicLayer):  # type: ignore[misc]  # transformers ships no usable types
    """One layer's keys and values, in buffers of shape (rows, heads, capacity, dim).

    `keys` and `values`, which transformers reads, are views of the columns in use.
    """

    def __init__(self, buffers: tuple[Tensor, ...] = (), used: int = 0) -> None:
        super().__init__()
        self._buffers = buffers
        self._use(used)

    def _use(self, columns: int) -> None:
        self.used = columns
        if self._buffers:
            self.keys, self.values = (b[:, :, :columns] for b in self._buffers)
            self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append columns to the first rows, zeros to the others; return the first rows."""
        first, rows, new = self.used, len(key_states), (key_states, value_states)
        self.reserve(key_states.shape[-2], self._buffers or new)
        self._use(first + key_states.shape[-2])
        for buffer, states in zip(self._buffers, new, strict=True):
            buffer[:rows, :, first : self.used] = states
            if rows < len(buffer):  # new memory may hold NaN, which no mask hides
                buffer[rows:, :, first : self.used] = 0
        return self.keys[:rows], self.values[:rows]

    def reserve(self, columns: int, like: tuple[Tensor, ...] | None = None) -> None:
        """Make room for `columns` more columns, and some to spare so that growing is rare."""
        needed, old = self.used + columns, self._buffers
        if old and needed <= old[0].shape[-2]:
            return
        capacity = -(-max(needed, int(self.used * _GROWTH)) // _ALIGN) * _ALIGN
        self._buffers = tuple(
            states.new_empty((*states.shape[:2], capacity, states.shape[-1]))
            for states in like or old
        )
        for buffer, columns_so_far in zip(self._buffers, old, strict=False):
            buffer[:, :, : self.used] = columns_so_far[:, :, : self.used]
        self._use(self.used)

    def fork(self, columns: int) -> KeptLayer:
        """Return a layer that shares the first `columns` columns.

        Both write new columns into the same buffer, so only one may grow while the other is in use.
        """
        return KeptLayer(self._buffers, columns)

    def swap(self, rows: Tensor, others: Tensor) -> None:
        """Exchange the contents of two sets of rows."""
        into, of = torch.cat([rows, others]), torch.cat([others, rows])
        for states in (self.keys, self.values):
            states[into] = states[of]

    def take(self, rows: Tensor, start: int, stop: int) -> KeptLayer:
        """Copy some rows, columns `start` to `stop`."""
        copies = (b[:, :, start:stop].index_select(0, rows) for b in self._buffers)
        return KeptLayer(tuple(copies), stop - start)


class KeptCache(Cache):  # type: ignore[misc]  # transformers ships no usable types
    """The KV cache of a batch: each row holds padding, a prompt and its trace."""

    layers: list[KeptLayer]

    def __init__(self, pads: Tensor, start: int) -> None:
        super().__init__(layer_class_to_replicate=KeptLayer)
        self.pads = pads  # (rows,)
        """Padding columns before each prompt."""
        self.start = start
        """Column of the first generated token."""

    @property
    def columns(self) -> int:
        """Columns in use."""
        return self.layers[0].used if self.layers else 0

    def reserve(self, columns: int) -> None:
        """Make room for `columns` more columns, in later forks too."""
        for layer in self.layers:
            layer.reserve(columns)

    def fork(self, columns: int | None = None) -> KeptCache:
        """Return a cache that shares the first columns, or all; see `KeptLayer.fork`."""
        cache = KeptCache(self.pads, self.start)
        cache.layers = [layer.fork(columns or layer.used) for layer in self.layers]
        return cache

    def swap(self, rows: NDArray[np.int64], others: NDArray[np.int64]) -> None:
        """Exchange two sets of rows."""
        one, other = (torch.from_numpy(part).to(self.pads.device) for part in (rows, others))
        for layer in self.layers:
            layer.swap(one, other)
        pads = self.pads.clone()
        pads[one], pads[other] = self.pads[other], self.pads[one]
        self.pads = pads

    def split(self, *parts: tuple[NDArray[np.int64], int], trimmed: bool = True) -> list[KeptCache]:
        """Move each part (rows, end column) into its own cache; leave this one empty.

        If `trimmed`, padding that all rows of a part share is left out.  Works layer by layer, so
        only one layer at a time exists twice.
        """
        indices = [torch.from_numpy(rows).to(self.pads.device) for rows, _ in parts]
        lefts = [int(self.pads[index].min()) if trimmed else 0 for index in indices]
        caches = [
            KeptCache(self.pads[index] - left, self.start - left)
            for index, left in zip(indices, lefts, strict=True)
        ]
        while self.layers:
            layer = self.layers.pop(0)
            for cache, index, left, (_, stop) in zip(caches, indices, lefts, parts, strict=True):
                cache.layers.append(layer.take(index, left, stop))
        return caches


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention without copying keys and values.

    If the mask's query axis is `groups` times as long as the queries, the query heads that share a
    KV head are folded into the query axis, so the prefix is read once for all of them and for all
    branches.  Such masks are additive and include causality.
    """
    for name in ("s_aux", "softcap", "position_bias"):
        if kwargs.get(name) is not None:
            raise ModelError(
                f"{type(module).__name__} uses attention with {name!r} (sinks, soft caps and "
                "position biases), which the hf engine does not compute; use another model"
            )
    rows, heads, length, dim = query.shape
    kv_heads = key.shape[1]
    groups = heads // kv_heads
    if groups > 1:
        masked = 1 if attention_mask is None else attention_mask.shape[-2]
        if length == 1 or masked == groups * length:
            query = query.reshape(rows, kv_heads, groups * length, dim)
        else:  # a prompt attends only to its own keys, so repeating them is cheap
            key = key.repeat_interleave(groups, dim=1)
            value = value.repeat_interleave(groups, dim=1)
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        attention_mask = attention_mask.to(query.dtype)
    out = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        scale=scaling,
        is_causal=attention_mask is None and length > 1,
    )
    out = out.reshape(rows, heads, length, value.shape[-1])
    return out.transpose(1, 2).contiguous(), None


def register_attention() -> str:
    """Register `attend` with transformers and return its name.

    Registers sdpa's masks too, so that the loaded model still works by itself.
    """
    AttentionInterface.register(_ATTENTION, attend)
    AttentionMaskInterface.register(_ATTENTION, sdpa_mask)
    return _ATTENTION


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a boolean mask into an additive one, which every kernel supports.

    Uses the lowest finite number instead of minus infinity: padding attends to nothing, and would
    give NaN.
    """
    mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return mask.masked_fill_(~allowed, torch.finfo(dtype).min)


# --- The forward pass ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Runner:
    """A model that reads and writes a `KeptCache`."""

    model: Any = field(repr=False)
    groups: int
    """Query heads per key/value head."""
    window: int | None = None
    """Length of the sliding window; None if no layer has one."""
    windowed: bool = False
    """Whether all layers have that window."""

    @property
    def device(self) -> torch.device:
        """Device of the model's input."""
        return cast(torch.device, self.model.device)

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the model and of its masks."""
        return cast(torch.dtype, self.model.dtype)

    @cached_property
    def cache_name(self) -> str:
        """Name of the cache argument; ``past_key_values`` before transformers 5.24."""
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
        """Run the model over new tokens and append them to the cache.

        Returns logits of shape (rows, wanted, vocabulary), in the model's number format.

        Parameters
        ----------
        ids, positions : shape (rows, queries)
            New tokens, and the position of each in its sequence.
        cache
            Grows by `queries` columns; further rows are left alone.
        mask : shape (rows, queries, columns)
            Additive mask over all columns, including new ones; None if nothing is masked.
        key_positions : shape (rows, columns)
            Position of each column in its sequence, for layers with a sliding window.
        last
            Queries whose logits are returned: indices, or how many at the end.
        folded
            Fold query heads into the query axis, see `attend`; wasteful for prompts.
        """

        def shaped(mask: Tensor) -> Tensor:
            if not folded:
                return mask[:, None]
            rows, queries, columns = mask.shape
            every = mask[:, None].expand(rows, self.groups, queries, columns)
            return every.reshape(rows, 1, self.groups * queries, columns)

        masks: Any = None if mask is None else shaped(mask)
        if self.window is not None:
            assert mask is not None
            far = positions[:, :, None] - key_positions[:, None, :] >= self.window
            near = shaped(mask.masked_fill(far, torch.finfo(mask.dtype).min))
            # One mask per kind of layer, under the names that transformers uses.
            both = {"full_attention": masks, "sliding_attention": near}
            masks = near if self.windowed else both
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=masks,
            use_cache=True,
            logits_to_keep=last,
            **{self.cache_name: cache},
        )
        return cast(Tensor, output.logits)

    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        pad_id: int,
        texts: Sequence[Sequence[int]] | None = None,
    ) -> tuple[KeptCache, Tensor]:
        """Run the model over prompts, padded on the left, then `texts`, padded on the right.

        All texts begin in the same column.  Also returns the last column's logits, of shape
        (rows, vocabulary).
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
        cache = KeptCache(pads, begun)
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
        return cache, logits[:, -1]
