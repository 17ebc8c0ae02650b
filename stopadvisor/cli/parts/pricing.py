"""Options that compute prices from the model and the accelerator, and where both are found."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from stopadvisor.cli.parts.declare import COUNT, declare, option
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.rules.costs import Weights, mean_context
from stopadvisor.rules.model_shape import PRESETS, model_shape
from stopadvisor.rules.roofline import (
    ACCELERATORS,
    DEFAULT_GPU,
    DEFAULT_IN_FLIGHT,
    Roofline,
    accelerator,
    recognised,
)
from stopadvisor.rules.serving_profile import SERVING_PROFILE, read_serving_profile
from stopadvisor.runs.sources import Source
from stopadvisor.runs.storage import replace_file

__all__ = [
    "PRICING",
    "PricingOptions",
    "computed_weights",
    "keep_profile",
    "measured_weights",
    "pricing_options",
]

_LOCAL = "local"
_LOADS = (1, 8, 32, 128)
"""Requests in flight for which the saving of the advised rule is shown."""
_DRIVER = Path("/proc/driver/nvidia/gpus")
_DENSE = "a dense model of 8B with grouped queries (this run's model is not known here)"


@dataclass(frozen=True)
class PricingOptions:
    """For which machine and model to compute prices."""

    gpu: str = _LOCAL
    """Name of an accelerator; ``local`` for the one of this machine."""
    in_flight: int = DEFAULT_IN_FLIGHT
    tensor_parallel: int = 1
    model_config: str | None = None
    """A file, or the name of a preset; None for the model of the run."""


PRICING = declare(
    option("Serving costs")(
        "--gpu",
        type=click.Choice([*ACCELERATORS, _LOCAL], case_sensitive=False),
        metavar="NAME",
        show_default="local, else h100",
        help="Compute what tokens cost inside an engine on this accelerator, from the model's "
        "config; the stack is then vllm unless --serving names another. One of "
        f"{', '.join(ACCELERATORS)}, or local.",
    ),
    option("Serving costs")(
        "--in-flight",
        type=COUNT,
        show_default=str(DEFAULT_IN_FLIGHT),
        help="Requests that decode together, for computed prices; at most what fits into memory.",
    ),
    option("Serving costs")(
        "--tensor-parallel",
        type=COUNT,
        show_default="1",
        help="Accelerators that share the model, for computed prices.",
    ),
    option("Serving costs")(
        "--model-config",
        metavar=f"FILE|{'|'.join(PRESETS)}",
        show_default="the run's model, else 8b",
        help="config.json of the model, or the size of a dense one, for computed prices.",
    ),
)
"""Each of them asks for computed prices."""


def pricing_options(params: dict[str, Any]) -> PricingOptions | None:
    """Take them out of click's parameters; None where none is given."""
    names = ("gpu", "in_flight", "tensor_parallel", "model_config")
    given = {name: params.pop(name) for name in names}
    given = {name: value for name, value in given.items() if value is not None}
    return PricingOptions(**given) if given else None


def computed_weights(options: PricingOptions, source: Source) -> tuple[Weights, ...]:
    """Prices for a run's questions, first as asked for and then at each of `_LOADS` that fits.

    Raises
    ------
    CalibrationError
        The config cannot be read or counted, or the model does not fit on the accelerator.
    """
    label, config = _config(options.model_config, source)
    gpu = accelerator((_local_gpu() or DEFAULT_GPU) if options.gpu == _LOCAL else options.gpu)
    engine = Roofline(model_shape(config), gpu, options.tensor_parallel)
    context = mean_context(source.table)
    loads = [engine.weights(context, in_flight) for in_flight in (options.in_flight, *_LOADS)]
    fitting = {each.in_flight: each for each in loads[1:]}
    return tuple(replace(each, model=label) for each in (loads[0], *fitting.values()))


def measured_weights(source: Source) -> tuple[Weights, ...]:
    """Prices as measured, where `keep_profile` found a serving profile."""
    file = source.folder / SERVING_PROFILE
    return (read_serving_profile(file).weights,) if file.is_file() else ()


def keep_profile(model: str | None, run: Path) -> None:
    """Take the serving profile over into a run where the model's folder holds one."""
    file = Path(model or "") / SERVING_PROFILE
    if model is not None and file.is_file():
        replace_file(run / SERVING_PROFILE, file.read_bytes())


def _local_gpu() -> str | None:
    """The first GPU of this machine that is in the table, by its driver's files."""
    named = (
        recognised(file.read_text(encoding="utf-8", errors="replace"))
        for file in sorted(_DRIVER.glob("*/information"))
    )
    return next((name for name in named if name), None)


def _config(asked: str | None, source: Source) -> tuple[str, Mapping[str, Any]]:
    """A model's config, and what to call it."""
    if asked in PRESETS:
        return f"a dense model of {asked.upper()} with grouped queries", PRESETS[asked]
    if asked is not None:
        return asked, _read(Path(asked))
    file = None if source.model is None or source.simulated else _config_file(source.model)
    return (_DENSE, PRESETS["8b"]) if file is None else (str(source.model), _read(file))


def _config_file(model: str) -> Path | None:
    """Where a model's config lies: in its folder, or in the cache of Hugging Face's hub."""
    own = Path(model) / "config.json"
    if own.is_file():
        return own
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    kept = hub.glob(f"models--{model.replace('/', '--')}/snapshots/*/config.json")
    return max(kept, key=lambda file: file.stat().st_mtime, default=None)


def _read(file: Path) -> Mapping[str, Any]:
    try:
        config = parse_json(file.read_bytes())
    except OSError as error:
        raise CalibrationError(f"cannot read {file}: {error.strerror or error}") from error
    except ValueError as error:
        raise CalibrationError(f"{file}: not JSON: {error}") from error
    if not isinstance(config, Mapping):
        raise CalibrationError(f"{file}: expected a JSON object, got {config!r}")
    return config
