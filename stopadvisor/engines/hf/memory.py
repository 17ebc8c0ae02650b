"""How much memory there is, and how much a token of cache takes.  Estimates, not promises."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from stopadvisor.engines.hf.size import host_memory

__all__ = ["free_memory", "kv_bytes_per_token"]

_USABLE = {"cuda": 0.85, "mps": 0.6, "cpu": 0.5}
"""Share of what is free now that a batch may plan with; the rest is for work space."""


def free_memory(devices: Iterable[torch.device], usable: float | None = None) -> int:
    """Return the bytes that may be planned with on these devices.

    `usable` is the share of what is free; by default it leaves work space beside a batch.
    """
    total = 0.0
    for device in devices:
        if device.type == "cuda":
            free = torch.cuda.mem_get_info(device)[0]
        elif device.type == "mps":
            free = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
        else:
            free = host_memory()
        total += free * (_USABLE.get(device.type, 0.5) if usable is None else usable)
    return int(total)


def kv_bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """Return the bytes of keys and values that one token adds over all layers."""
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    return 2 * int(config.num_hidden_layers) * kv_heads * dim * dtype.itemsize
