"""Options that compute prices from the model and the accelerator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from stopadvisor.cli.parts.declare import COUNT, Parsed, declare, option
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.rules.model_shape import PRESETS, model_shape
from stopadvisor.rules.roofline import ACCELERATORS, DEFAULT_IN_FLIGHT
from stopadvisor.runs.prices import LOCAL_GPU, PriceRequest, read_config

__all__ = ["PRICING", "price_request"]


def _model_config(text: str) -> str:
    """Refuse what no price can be computed from before anything is probed for it."""
    try:
        if text not in PRESETS:
            model_shape(read_config(Path(text)))
    except CalibrationError as error:
        raise ValueError(str(error)) from error
    return text


PRICING = declare(
    option("Serving costs")(
        "--gpu",
        type=click.Choice([*ACCELERATORS, LOCAL_GPU], case_sensitive=False),
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
        help="Requests in flight at once, for computed prices; capped at what fits into memory.",
    ),
    option("Serving costs")(
        "--tensor-parallel",
        type=COUNT,
        show_default="as many as hold the model",
        help="Accelerators that share the model, for computed prices.",
    ),
    option("Serving costs")(
        "--model-config",
        type=Parsed("file|size", _model_config),
        metavar=f"FILE|{'|'.join(PRESETS)}",
        show_default="the run's model, else 8b",
        help="config.json of the model, or the size of a dense one, for computed prices.",
    ),
)
"""Each of them asks for computed prices, where a profile would be taken."""


def price_request(params: dict[str, Any]) -> PriceRequest | None:
    """Take them out of click's parameters; None where none is given."""
    names = ("gpu", "in_flight", "tensor_parallel", "model_config")
    given = {name: params.pop(name) for name in names}
    given = {name: value for name, value in given.items() if value is not None}
    return PriceRequest(**given) if given else None
