"""How large a model is, how much memory there is, and whether the one fits the other.

What is asked before anything is downloaded or loaded needs neither torch nor transformers, so that
the commonest refusal, a large model on a laptop, takes milliseconds.  Estimates, not promises.
"""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stopadvisor.ground.errors import ModelError
from stopadvisor.ground.json_text import parse_json

if TYPE_CHECKING:
    import torch

__all__ = [
    "ALTERNATIVES",
    "ModelSize",
    "check_size",
    "free_memory",
    "has_accelerator",
    "host_memory",
    "kv_bytes_per_token",
    "size_of_folder",
    "size_of_name",
    "stored_width",
]

ALTERNATIVES = (
    "use a smaller one, the bundled tiny reasoner (--model samples/tiny-reasoner), "
    "or a server that runs it (--engine openai --base-url http://HOST:8000/v1)"
)

_KNOWN = {"Qwen/Qwen3-8B": 8.19e9}
_BILLIONS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[bB](?![A-Za-z0-9])")

_TOO_SLOW = 3e9
"""Parameters above which a processor alone would take weeks over a workload's traces."""

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_CPU_MEMORY_SHARE = 0.9
_USABLE = {"cuda": 0.85, "mps": 0.6, "cpu": 0.5}
"""Share of what is free now that a batch may plan with; the rest is for work space."""


@dataclass(frozen=True)
class ModelSize:
    """A model's size, as far as it is known."""

    parameters: float
    stored_bytes_per_parameter: float = 2.0
    """Less than 2 for quantised weights, whose format is kept when they are loaded."""

    def needs(self, dtype: str) -> float:
        """Return the bytes of its weights when loaded in `dtype`."""
        if self.stored_bytes_per_parameter < 2:
            return self.parameters * self.stored_bytes_per_parameter
        return self.parameters * _BYTES[dtype]


def size_of_name(model: str) -> ModelSize | None:
    """Estimate the size from a name such as ``Qwen/Qwen3-8B``; None where it carries none.

    Examples
    --------
    >>> size_of_name("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B").parameters
    1500000000.0
    """
    known = _KNOWN.get(model)
    if known is not None:
        return ModelSize(known)
    # The first number is the size; a second, as in 30B-A3B, is what one token activates.
    found = _BILLIONS.search(model.rsplit("/", 1)[-1])
    return ModelSize(float(found.group(1)) * 1e9) if found else None


def size_of_folder(folder: Path) -> ModelSize | None:
    """Read the size off a local folder's weight files; None where there are none."""
    files = [*folder.glob("*.safetensors")] or [*folder.glob("*.bin")]
    stored = sum(file.stat().st_size for file in files)
    if not stored:
        return None
    width = stored_width(_read_json(folder / "config.json"))
    return ModelSize(stored / width, width)


def stored_width(config: Any, default: float | None = None) -> float:
    """Return the bytes per stored parameter.

    `default` replaces the width of unquantised weights, whose format changes when they are loaded.
    """
    if not isinstance(config, dict):
        return 2.0
    quantisation = config.get("quantization_config")
    if isinstance(quantisation, dict):
        bits = quantisation.get("bits") or (4 if quantisation.get("load_in_4bit") else 8)
        return float(bits) / 8
    if default is not None:
        return default
    name = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    return float(_BYTES.get(name.removeprefix("torch."), 4))


def _read_json(file: Path) -> Any:
    try:
        return parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # whoever loads the model says what is wrong with it


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
    model: str, size: ModelSize, *, dtype: str, memory: float, place: str, patient: bool
) -> None:
    """Refuse a model that cannot be loaded as `dtype` into the bytes of `memory`.

    `patient`: run it even where that is slow, as an accelerator is there or the user asked for the
    processor by name.  `model` and `place` are for the message.

    Raises
    ------
    ModelError
        It does not fit, or would take weeks; the message names its size and the alternatives.
    """
    need = size.needs(dtype)
    described = (
        f"{model} has {size.parameters / 1e9:.1f} B parameters "
        f"({size.needs('bfloat16') / 1e9:.0f} GB in bfloat16)"
    )
    if not patient and size.parameters > _TOO_SLOW:
        raise ModelError(
            f"{described} and there is no GPU here: a workload's traces would take weeks; "
            f"{ALTERNATIVES}"
        )
    if need > memory * _CPU_MEMORY_SHARE:
        raise ModelError(
            f"{described} and does not fit: {need / 1e9:.0f} GB are needed in {dtype}, {place} "
            f"has {memory / 1e9:.0f} GB free; {ALTERNATIVES}"
        )


def free_memory(device: torch.device, usable: float | None = None) -> int:
    """Return the bytes that may be planned with on this device.

    `usable` is the share of what is free; by default it leaves work space for a batch.
    """
    import torch

    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    elif device.type == "mps":
        free = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    else:
        free = host_memory()
    return int(free * (_USABLE.get(device.type, 0.5) if usable is None else usable))


def kv_bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """Return the bytes of keys and values that one token adds over all layers."""
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    return 2 * int(config.num_hidden_layers) * kv_heads * dim * dtype.itemsize
