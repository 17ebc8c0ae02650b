"""Load a model, with the cheap checks first: name, size and memory, before torch is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stopadvisor.engines.errors import require_packages
from stopadvisor.engines.hf.size import (
    DTYPES,
    check_size,
    has_accelerator,
    host_memory,
    named_parameters,
)
from stopadvisor.engines.model_files import require_hub
from stopadvisor.ground.errors import ModelError

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine

__all__ = ["load_engine"]

_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def load_engine(
    model: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    think_tags: tuple[str, str] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> HfEngine:
    """Load a reasoning model through transformers, from a folder or from the Hugging Face Hub.

    Weights are read from safetensors files only.

    Parameters
    ----------
    device
        ``auto`` (a GPU if there is one), or a torch device such as ``cpu`` or ``cuda:1``.
    dtype
        ``auto`` (the model's own on a GPU, float32 on a CPU), ``float32``, ``bfloat16`` or
        ``float16``.
    think_tags
        Opener and closer of thinking; detected if None.

    Raises
    ------
    ModelError
        The model is unknown, too large for this machine, or of a kind that cannot be probed
        (recurrent or hybrid layers, encoder-decoder, attention with sinks), or has no chat template
        or no thinking markers.
    """
    if dtype != "auto" and dtype not in DTYPES:
        raise ModelError(f"dtype must be one of auto, {', '.join(DTYPES)}, got {dtype!r}")
    folder = Path(model) if (Path(model) / "config.json").is_file() else None
    if folder is None:  # checks that need only the name and the machine
        if Path(model).exists() or not _HUB_NAME.fullmatch(model):
            raise ModelError(
                f"model {model!r} is not a folder with a config.json, nor a name on the Hugging "
                "Face Hub"
            )
        parameters = named_parameters(model)
        accelerated = has_accelerator() if device == "auto" else device != "cpu"
        if parameters is not None and not accelerated:
            check_size(
                model,
                parameters,
                dtype="float32" if dtype == "auto" else dtype,
                memory=host_memory(),
                place="this machine",
                patient=device == "cpu",
            )
    require_packages("hf", "torch", "transformers")
    if folder is None:
        require_hub(model)

    # Must be set before torch is imported.  By default its threads spin while they wait, and a
    # small model is far slower on a shared machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from stopadvisor.engines.hf import assemble

    return assemble.assemble(
        model,
        folder,
        device=device,
        dtype=None if dtype == "auto" else dtype,
        think_tags=think_tags,
        chat_template_kwargs=chat_template_kwargs,
    )
