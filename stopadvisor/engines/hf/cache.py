"""The kept key/value cache, and the attention that reads it in place.

One buffer per layer holds a batch of left-padded prompts, what was generated after them, and for
as long as a probe lasts the tokens of its branches.  Appending writes into the buffer, dropping
columns only changes the length, and a fork shares the buffers, so that branches neither copy nor
repeat the prefix they stand on.  Knows columns, not what they mean: who may see which is in the
mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache, DynamicLayer
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from stopadvisor.ground.errors import ModelError

__all__ = ["ATTENTION", "KeptCache", "additive", "attend", "fold", "register_attention"]

ATTENTION = "stopadvisor_kept"
"""Name under which transformers knows `attend`."""

_GROWTH = 1.25
_ALIGN = 64


class KeptLayer(DynamicLayer):  # type: ignore[misc]  # transformers ships no usable types
    """One layer's keys and values, in buffers with room to grow.

    `keys` and `values` are views of what is in use, as transformers expects them.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._buffers: tuple[Tensor, Tensor] | None = None  # (rows, heads, capacity, dim) each
        self._used = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append columns and return all of them."""
        used = self._used + key_states.shape[-2]
        buffers = self._room(key_states, value_states, used)
        for buffer, states in zip(buffers, (key_states, value_states), strict=True):
            buffer[:, :, self._used : used] = states
        self._used = used
        self._show()
        return self.keys, self.values

    def _room(self, keys: Tensor, values: Tensor, needed: int) -> tuple[Tensor, Tensor]:
        """Return buffers of `needed` columns or more, grown by a share so that growing is rare."""
        old = self._buffers
        if old is not None and needed <= old[0].shape[-2]:
            return old
        capacity = -(-max(needed, int(self._used * _GROWTH)) // _ALIGN) * _ALIGN
        fresh = []
        for i, states in enumerate((keys, values)):
            buffer = states.new_empty((*states.shape[:2], capacity, states.shape[-1]))
            if old is not None:
                buffer[:, :, : self._used] = old[i][:, :, : self._used]
            fresh.append(buffer)
        self._buffers = (fresh[0], fresh[1])
        return self._buffers

    def _show(self) -> None:
        assert self._buffers is not None
        self.keys, self.values = (b[:, :, : self._used] for b in self._buffers)
        self.is_initialized = True

    @property
    def columns(self) -> int:
        """Columns in use."""
        return self._used

    def reserve(self, columns: int) -> None:
        """Make room for `columns` more columns."""
        assert self._buffers is not None
        self._room(*self._buffers, self._used + columns)
        self._show()

    def truncate(self, columns: int) -> None:
        """Forget every column from `columns` on."""
        self._used = min(self._used, columns)
        self._show()

    def fork(self) -> KeptLayer:
        """Return a layer that shares these columns and grows on its own.

        Both would write their next column into the same place: only one of a layer and its fork
        may be extended while the other is in use.
        """
        layer = KeptLayer()
        layer._buffers, layer._used = self._buffers, self._used
        layer._show()
        return layer

    def take(self, rows: Tensor, start: int, stop: int) -> KeptLayer:
        """Return a copy of some rows and of the columns from `start` to `stop`."""
        assert self._buffers is not None
        layer = KeptLayer()
        rows = rows.to(self._buffers[0].device)
        copies = [b[:, :, start:stop].index_select(0, rows) for b in self._buffers]
        layer._buffers, layer._used = (copies[0], copies[1]), stop - start
        layer._show()
        return layer


class KeptCache(Cache):  # type: ignore[misc]  # transformers ships no usable types
    """The key/value cache of a batch, kept for the branches that grow on it."""

    layers: list[KeptLayer]

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=KeptLayer)

    @property
    def columns(self) -> int:
        """Columns in use."""
        return self.layers[0].columns if self.layers else 0

    def reserve(self, columns: int) -> None:
        """Make room for `columns` more columns, also in later forks."""
        for layer in self.layers:
            layer.reserve(columns)

    def truncate(self, columns: int) -> None:
        """Forget every column from `columns` on."""
        for layer in self.layers:
            layer.truncate(columns)

    def fork(self) -> KeptCache:
        """Return a cache that shares the columns so far; see `KeptLayer.fork`."""
        cache = KeptCache()
        cache.layers = [layer.fork() for layer in self.layers]
        return cache

    def keep(self, rows: Tensor) -> None:
        """Drop every other row.

        Layer by layer, so that only one layer at a time is held twice.
        """
        for i, layer in enumerate(self.layers):
            self.layers[i] = layer.take(rows, 0, layer.columns)

    def split_off(self, rows: Tensor, span: slice, rest: Tensor, rest_span: slice) -> KeptCache:
        """Move some rows, with the columns of `span`, into a cache of their own.

        The rows of `rest` stay, with the columns of `rest_span`.
        """
        cache = KeptCache()
        for i, layer in enumerate(self.layers):
            cache.layers.append(layer.take(rows, span.start, span.stop))
            self.layers[i] = layer.take(rest, rest_span.start, rest_span.stop)
        return cache


def fold(mask: Tensor, groups: int) -> Tensor:
    """Repeat a mask for every query head that shares a key/value head.

    From (rows, queries, columns) to (rows, 1, groups * queries, columns), as `attend` expects it.
    """
    rows, queries, columns = mask.shape
    folded = mask[:, None].expand(rows, groups, queries, columns)
    return folded.reshape(rows, 1, groups * queries, columns)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention that leaves the keys and values where they are.

    A mask whose query axis is `groups` times as long as the queries asks for folding: the query
    heads that share a key/value head are laid out as further queries of it, so that the prefix
    is read once for all of them and for all branches, and never repeated.  Such masks are additive
    and hold everything, causality included.  Masks that transformers makes itself, when the model
    is used without us, mean what they mean there.
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
        else:  # a prompt: its own keys only, so repeating them is cheap
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
    """Make `attend` known to transformers and return its name.

    With transformers' own masks for it, so that the loaded model stays usable by itself.
    """
    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    return ATTENTION


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a boolean mask into the additive one that every kernel understands.

    The least finite number rather than minus infinity, so that padding, which sees nothing,
    gives garbage that nobody reads instead of NaN.
    """
    mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return mask.masked_fill_(~allowed, torch.finfo(dtype).min)
