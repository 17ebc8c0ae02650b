"""Token prices for a run's questions, and other default settings that follow from a run.

Prices come from a serving profile in the run; else they are computed from the model's config and an
accelerator.  A ladder has its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stopadvisor.ground.errors import CalibrationError
from stopadvisor.ground.json_text import read_object
from stopadvisor.rules.costs import LADDER, MONEY, Weights, mean_context
from stopadvisor.rules.families import RUNG_FAMILIES
from stopadvisor.rules.losses import DIFFERS, DROP
from stopadvisor.rules.model_shape import PRESETS, ModelShape, model_shape
from stopadvisor.rules.roofline import (
    DEFAULT_GPU,
    DEFAULT_IN_FLIGHT,
    Accelerator,
    Roofline,
    accelerator,
    recognised,
)
from stopadvisor.rules.serving_profile import SERVING_PROFILE, read_serving_profile
from stopadvisor.runs.sources import Source
from stopadvisor.runs.storage import replace_file

__all__ = ["LOCAL_GPU", "PriceRequest", "computed_weights", "default_settings", "keep_model_files"]

LOCAL_GPU = "local"
MODEL_CONFIG = "model-config.json"
"""The model's ``config.json``, kept in the run so that prices are the same on any machine."""
_LOADS = (1, 8, 32, 128)
"""Requests in flight for which the saving of the advised rule is shown."""
_FEWEST = 8
"""Requests for which the default number of accelerators has room."""
_DRIVER = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True)
class PriceRequest:
    """The machine and model to compute prices for."""

    gpu: str = LOCAL_GPU
    """Name of an accelerator; ``local`` is this machine's, or an H100 if none is recognised."""
    in_flight: int = DEFAULT_IN_FLIGHT
    tensor_parallel: int | None = None
    """Accelerators that share the model; None for the fewest that hold it and some requests."""
    model_config: str | None = None
    """A ``config.json`` or the name of a preset; None for the run's model."""


def default_settings(source: Source) -> dict[str, Any]:
    """Default settings that follow from a run.

    Without gold the loss counts differing replies.  On a ladder two replies are independent draws,
    so the loss is the drop in accuracy, unless the reference contains the rungs before it.  Serving
    is inside vLLM.  Prices are measured or computed, never the paper's.
    """
    defaults: dict[str, Any] = {}
    if source.graded_by == "agreement":
        defaults["loss"] = DIFFERS.name
    rungs = source.table.rungs
    if rungs is not None:
        if "loss" not in defaults and not rungs.contains_reference:
            defaults["loss"] = DROP.name
        prefilled, cached, decoded = rungs.rates[-1]
        prices = Weights(prefilled, cached, decoded, MONEY)
        return {**defaults, "serving": LADDER, "families": RUNG_FAMILIES, "weights": prices}
    profile = source.folder / SERVING_PROFILE
    weights = (
        read_serving_profile(profile).weights
        if profile.is_file()
        else computed_weights(None, source)[0]
    )
    return {**defaults, "serving": "vllm", "weights": weights}


# --- Computed prices ------------------------------------------------------------------------------


def computed_weights(request: PriceRequest | None, source: Source) -> tuple[Weights, ...]:
    """Compute prices for a run's questions, as requested and then at each of `_LOADS` that fits.

    Without a request the defaults apply, and a model of unknown shape is priced as a dense 8B one;
    `Weights.model` says so.

    Raises
    ------
    CalibrationError
        The config cannot be read or its shape is unknown, or the model does not fit on the
        accelerators.
    """
    asked = request or PriceRequest()
    label, config = _config(asked.model_config, source)
    try:
        shape = model_shape(config)
    except CalibrationError:
        if request is not None:
            raise
        label, shape = _dense(f"the config of {label} does not tell its own"), _DENSE
    gpu = accelerator((_local_gpu() or DEFAULT_GPU) if asked.gpu == LOCAL_GPU else asked.gpu)
    context = mean_context(source.table)
    devices = asked.tensor_parallel or _enough(shape, gpu, context, asked.in_flight)
    engine = Roofline(shape, gpu, devices)
    loads = [engine.weights(context, in_flight) for in_flight in (asked.in_flight, *_LOADS)]
    fitting = {prices.in_flight: prices for prices in loads[1:]}
    return tuple(replace(prices, model=label) for prices in (loads[0], *fitting.values()))


def _enough(shape: ModelShape, gpu: Accelerator, context: float, in_flight: int) -> int:
    """Fewest accelerators, 1 to 32, that hold the weights and some requests."""
    for devices in (1, 2, 4, 8, 16):
        with suppress(CalibrationError):
            if Roofline(shape, gpu, devices).most_in_flight(context) >= min(in_flight, _FEWEST):
                return devices
    return 32


def _dense(why: str) -> str:
    return f"a dense model of 8B with grouped queries ({why})"


_DENSE = model_shape(PRESETS["8b"])


def keep_model_files(model: str | None, run: Path) -> None:
    """Copy the model's config and serving profile into a run, for its prices."""
    if model is None:
        return
    for file, name in (
        (Path(model) / SERVING_PROFILE, SERVING_PROFILE),
        (_config_file(model), MODEL_CONFIG),
    ):
        if file is not None and file.is_file():
            replace_file(run / name, file.read_bytes())


def _local_gpu() -> str | None:
    """The first GPU here that our table knows, read from the driver's files."""
    named = (
        recognised(file.read_text(encoding="utf-8", errors="replace"))
        for file in sorted(_DRIVER.glob("*/information"))
    )
    return next((name for name in named if name), None)


def _config(asked: str | None, source: Source) -> tuple[str, Mapping[str, Any]]:
    """The model in words, and its config."""
    if asked in PRESETS:
        return f"a dense model of {asked.upper()} with grouped queries", PRESETS[asked]
    if asked is not None:
        return asked, read_object(Path(asked), CalibrationError)
    if source.model is not None:
        kept = source.folder / MODEL_CONFIG
        file = kept if kept.is_file() else _config_file(source.model)
        if file is not None:
            return source.model, read_object(file, CalibrationError)
    return _dense("this run's model is not known here"), PRESETS["8b"]


def _config_file(model: str) -> Path | None:
    """A model's config in its folder or the Hugging Face cache; None if it is in neither."""
    local = Path(model) / "config.json"
    if local.is_file():
        return local
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    kept = hub.glob(f"models--{model.replace('/', '--')}/snapshots/*/config.json")
    return max(kept, key=lambda file: file.stat().st_mtime, default=None)
