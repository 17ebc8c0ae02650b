"""How large a model is, how much memory there is, and whether the one fits the other.

Asked before anything is downloaded or loaded, without torch, so that the commonest refusal, a large
model on a laptop, takes milliseconds.  Estimates, not promises.
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
