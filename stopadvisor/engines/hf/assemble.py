"""The part of loading that needs torch: check the model, then load its weights."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from stopadvisor.engines.chat import Chat
from stopadvisor.engines.errors import first_line
from stopadvisor.engines.hf.branch import check_branches
from stopadvisor.engines.hf.cache import Runner, register_attention
from stopadvisor.engines.hf.engine import HfEngine
from stopadvisor.engines.hf.local_model import free_memory
from stopadvisor.engines.hf.size import check_size
from stopadvisor.engines.model_files import content_revision, quiet, stop_ids
from stopadvisor.engines.sampling import identity_settings
from stopadvisor.ground.errors import ModelError

__all__ = ["assemble"]

_LAYERS = {"full_attention", "sliding_attention"}


def assemble(
    model: str,
    folder: Path | None,
    *,
    device: str,
    dtype: str | None,
    think_tags: tuple[str, str] | None,
    chat_template_kwargs: Mapping[str, Any] | None,
) -> HfEngine:
    """Check a model, then load it from its `folder` or the Hub; raises as `load_engine`."""
    with quiet(bars=folder is None):
        with _loading(model, "configuration"):
            config = AutoConfig.from_pretrained(model, trust_remote_code=False)
        window = _check_layers(model, config)
        with _loading(model, "tokenizer"):
            tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
        chat = Chat.of(tokenizer, think_tags=think_tags, template_kwargs=chat_template_kwargs)
        target = _device(device)
        kind = _dtype(config, target, dtype)
        with _loading(model, "architecture"):
            _check_fits(model, config, target, kind, patient=device != "auto")
        with _loading(model, "weights"):
            options: dict[str, Any] = {"dtype": kind, "attn_implementation": register_attention()}
            if target.type != "cpu" and importlib.util.find_spec("accelerate") is not None:
                options["device_map"] = target  # avoids a copy in host memory
            loaded = AutoModelForCausalLM.from_pretrained(
                model, **options, trust_remote_code=False, use_safetensors=True
            )
            loaded = (loaded if "device_map" in options else loaded.to(target)).eval()

    text = config.get_text_config(decoder=True)
    heads = int(text.num_attention_heads)
    kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    runner = Runner(loaded, heads // kv_heads, *window)
    try:
        with torch.inference_mode():
            check_branches(runner, int(loaded.get_output_embeddings().weight.shape[0]))
    except ModelError as error:
        raise ModelError(f"{model}: {error}") from error
    except Exception as error:  # any model's code may run here
        raise ModelError(
            f"{model}: {type(loaded).__name__} cannot be probed over a kept cache "
            f"({first_line(error)}); use another model"
        ) from error

    generation, quantisation = loaded.generation_config, _quantisation(config)
    revision = content_revision(folder) if folder else getattr(config, "_commit_hash", None)
    rope, remarks = (getattr(text, "rope_parameters", None) or {}).get("rope_type"), []
    if rope in ("dynamic", "longrope"):
        remarks.append(
            f"positions are scaled by the longest sequence of a batch (rope type {rope!r}): beyond "
            "the model's original context, results depend on the batch"
        )
    identity = {
        "engine": "hf",
        "engine_version": transformers.__version__,
        "torch": torch.__version__,
        "model": folder.resolve().name if folder is not None else model,
        "model_revision": revision,
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "attention": "sdpa",
        "device": loaded.device.type,
        "quantization": quantisation and str(quantisation.get("quant_method")),
        "generation_config": identity_settings(generation),
    }
    return HfEngine(
        name=identity["model"],
        runner=runner,
        chat=chat,
        stop_ids=stop_ids(generation, chat.tokenizer),
        model_identity=identity,
        remarks=remarks,
    )


def _check_layers(model: str, config: Any) -> tuple[int | None, bool]:
    """Refuse layers that cannot branch; return the window and whether all layers have it."""
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{model} is an encoder-decoder model; a decoder-only model is required")
    causal = AutoModelForCausalLM._model_mapping
    if type(config) not in causal:
        raise ModelError(
            f"{model} is of type {config.model_type!r}, which is not a causal language model"
        )
    text, architecture = config.get_text_config(decoder=True), causal[type(config)]
    kinds = getattr(text, "layer_types", None)
    strange = sorted(set(kinds or ()) - _LAYERS)
    if strange or getattr(architecture, "_is_stateful", False):
        what = f"layers of kind {', '.join(map(repr, strange))}" if strange else "recurrent layers"
        raise ModelError(
            f"{model} ({config.model_type}) has {what}: their state cannot be rewound to a "
            "checkpoint, which probing needs; use another model"
        )
    # Models with sinks, soft caps or position biases do not support sdpa in transformers.
    if not (
        getattr(architecture, "_supports_sdpa", False)
        and getattr(architecture, "_supports_attention_backend", False)
    ):
        raise ModelError(
            f"{model} ({config.model_type}) has custom attention, which cannot run over a kept "
            "cache here; use another model"
        )
    window = getattr(text, "sliding_window", None)
    if kinds is None:
        return (int(window), True) if window else (None, False)
    if "sliding_attention" not in kinds:
        return None, False
    if not window:
        raise ModelError(f"{model} has sliding-window layers of unknown length; use another model")
    return int(window), False


def _device(device: str) -> torch.device:
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise ModelError(
            f"device must be auto, cpu, cuda, cuda:N or mps, got {device!r}"
        ) from error
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (target.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not available.get(target.type, False):
        raise ModelError(f"device {device!r} is missing, or this torch cannot use it")
    return target


def _dtype(config: Any, target: torch.device, dtype: str | None) -> torch.dtype:
    """Return `dtype`; if None, the model's own on a GPU and float32 on a CPU."""
    if dtype is not None:
        chosen = getattr(torch, dtype)
        assert isinstance(chosen, torch.dtype)
        return chosen
    if target.type == "cpu":
        return torch.float32
    saved = getattr(config.get_text_config(decoder=True), "dtype", None)
    return saved if isinstance(saved, torch.dtype) else torch.bfloat16


def _check_fits(
    model: str, config: Any, target: torch.device, kind: torch.dtype, *, patient: bool
) -> None:
    """Refuse weights that do not fit into memory or are too slow on a CPU; see `check_size`."""
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config)
    width, quantisation = None, _quantisation(config)
    if quantisation is not None:
        bits = quantisation.get("bits") or (4 if quantisation.get("load_in_4bit") else 8)
        width = float(bits) / 8
    check_size(
        model,
        float(sum(p.numel() for p in empty.parameters())),
        width=width,
        dtype=str(kind).removeprefix("torch."),
        memory=free_memory(target),
        place="this machine" if target.type == "cpu" else "the GPU",
        patient=patient or target.type != "cpu",
    )


def _quantisation(config: Any) -> dict[str, Any] | None:
    value = config.to_dict().get("quantization_config")
    return value if isinstance(value, dict) else None


@contextmanager
def _loading(model: str, part: str) -> Iterator[None]:
    """Turn exceptions of transformers into a one-line `ModelError`."""
    try:
        yield
    except ModelError:
        raise
    except torch.OutOfMemoryError as error:
        raise ModelError(f"{model} does not fit: {first_line(error)}") from error
    except Exception as error:  # the Hub's client and the parsers raise many kinds
        raise ModelError(
            f"cannot load the {part} of model {model!r}: {first_line(error)}"
        ) from error
