"""Estimate a model's size and the free memory, before anything is downloaded or imported.

The most common refusal, a large model on a laptop, then takes milliseconds.
"""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from pathlib import Path

from stopadvisor.ground.errors import ModelError

__all__ = ["DTYPES", "check_size", "has_accelerator", "host_memory", "named_parameters"]

DTYPES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
"""Bytes per parameter."""

_ALTERNATIVES = (
    "use a smaller one, the bundled tiny reasoner (--model samples/tiny-reasoner), "
    "or a server that runs it (--engine openai --base-url http://HOST:8000/v1)"
)
_KNOWN = {"Qwen/Qwen3-8B": 8.19e9}
_BILLIONS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[bB](?![A-Za-z0-9])")
_TOO_SLOW = 3e9
"""Parameters above which a CPU would take weeks over a workload."""
_WEIGHTS_SHARE = 0.9


def named_parameters(model: str) -> float | None:
    """Read the number of parameters from a name such as ``Qwen/Qwen3-8B``; None without one.

    Examples
    --------
    >>> named_parameters("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")
    1500000000.0
    """
    # The first number is the size; a second one, as in 30B-A3B, counts active parameters.
    match = _BILLIONS.search(model.rsplit("/", 1)[-1])
    return _KNOWN.get(model) or (float(match.group(1)) * 1e9 if match else None)


def has_accelerator() -> bool:
    """Guess whether this machine has a GPU that torch can use."""
    if platform.system() == "Darwin":
        return platform.machine() == "arm64"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return any(Path(device).exists() for device in ("/dev/nvidia0", "/dev/kfd", "/dev/dxg"))


def host_memory() -> int:
    """Estimate the bytes of memory that are free for a new process."""
    with suppress(OSError, ValueError):  # not Linux: assume that all memory is free
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
    """Refuse a model that does not fit into `memory` bytes as `dtype`.

    Unless `patient` (there is an accelerator, or the user named the CPU), also refuse a model too
    slow for a CPU.  `width` is the bytes per quantised parameter.  `model` and `place` are for the
    message.
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
