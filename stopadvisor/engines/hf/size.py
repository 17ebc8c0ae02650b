"""How large a model is, how much memory there is, and whether the one fits the other.

What is asked before anything is downloaded or loaded needs neither torch nor transformers, so that
the commonest refusal, a large model on a laptop, takes milliseconds.  Estimates, not promises.
"""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stopadvisor.ground.errors import ModelError

if TYPE_CHECKING:
    import torch

__all__ = [
    "DTYPES",
    "batch_memory",
    "check_size",
    "free_memory",
    "has_accelerator",
    "host_memory",
    "kv_bytes_per_token",
    "named_parameters",
]

DTYPES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
"""Bytes of a parameter in each format that weights are loaded in."""

_ALTERNATIVES = (
    "use a smaller one, the bundled tiny reasoner (--model samples/tiny-reasoner), "
    "or a server that runs it (--engine openai --base-url http://HOST:8000/v1)"
)
_KNOWN = {"Qwen/Qwen3-8B": 8.19e9}
_BILLIONS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[bB](?![A-Za-z0-9])")
_TOO_SLOW = 3e9
"""Parameters above which a processor alone would take weeks over a workload's traces."""
_WEIGHTS_SHARE = 0.9
_USABLE = {"cuda": 0.85, "mps": 0.6, "cpu": 0.5}
"""Share of what is free now that a batch may plan with; the rest is for work space."""


def named_parameters(model: str) -> float | None:
    """Read the number of parameters off a name such as ``Qwen/Qwen3-8B``; None if it has none.

    Examples
    --------
    >>> named_parameters("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")
    1500000000.0
    """
    # The first number is the size; a second, as in 30B-A3B, is what one token activates.
    found = _BILLIONS.search(model.rsplit("/", 1)[-1])
    return _KNOWN.get(model) or (float(found.group(1)) * 1e9 if found else None)


def has_accelerator() -> bool:
    """Whether this machine seems to have a GPU that torch could use."""
    if platform.system() == "Darwin":
        return platform.machine() == "arm64"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return any(Path(device).exists() for device in ("/dev/nvidia0", "/dev/kfd", "/dev/dxg"))


def host_memory() -> int:
    """Return the bytes of memory that are free for a new process, at a guess."""
    with suppress(OSError, ValueError):  # not Linux: all of the memory is the best guess left
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_size(
    model: str,
    parameters: float,
    *,
    dtype: str,
    memory: float,
    place: str,
    patient: bool,
    width: float | None = None,
) -> None:
    """Refuse a model that cannot be loaded as `dtype` into the bytes of `memory`.

    `patient`: run it even where that is slow, as an accelerator is there or the user asked for the
    processor by name.  `width` is the bytes of a quantised parameter, whose format is kept when it
    is loaded.  `model` and `place` are for the message.

    Raises
    ------
    ModelError
        It does not fit, or would take weeks; the message names its size and the alternatives.
    """
    need = parameters * (width or DTYPES[dtype])
    described = (
        f"{model} has {parameters / 1e9:.1f} B parameters ({2 * parameters / 1e9:.0f} GB in "
        "bfloat16)"
    )
    if not patient and parameters > _TOO_SLOW:
        raise ModelError(
            f"{described} and there is no GPU here: a workload's traces would take weeks; "
            f"{_ALTERNATIVES}"
        )
    if need > memory * _WEIGHTS_SHARE:
        raise ModelError(
            f"{described} and does not fit: {need / 1e9:.0f} GB are needed in {dtype}, {place} "
            f"has {memory / 1e9:.0f} GB free; {_ALTERNATIVES}"
        )


def free_memory(device: torch.device) -> int:
    """Return the bytes that are free on this device."""
    import torch

    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return host_memory()


def batch_memory(device: torch.device) -> int:
    """Return the bytes that a batch may plan with; the rest is work space."""
    return int(free_memory(device) * _USABLE.get(device.type, 0.5))


def kv_bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """Return the bytes of keys and values that one token adds over all layers."""
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    return 2 * int(config.num_hidden_layers) * kv_heads * dim * dtype.itemsize
