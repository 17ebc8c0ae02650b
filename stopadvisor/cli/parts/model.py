"""Options of the model: which one, here or at a server, and how it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import click

from stopadvisor.cli.parts.declare import Decorator, Parsed, declare, option
from stopadvisor.engines.engine_settings import EngineSettings
from stopadvisor.ground.json_text import parse_json
from stopadvisor.probes.asking import reserved_arguments

__all__ = [
    "API_KEY", "CHAT_TEMPLATE", "REQUEST_TIMEOUT", "SERVER", "check_engine_options",
    "model_name", "model_options",
]  # fmt: skip

_SERVER_OPTIONS = ("base_url", "tokenizer", "api_key_env", "request_timeout", "patience")
_LOCAL_OPTIONS = ("device", "dtype")


def check_engine_options(params: Mapping[str, Any]) -> None:
    """Refuse a server without an address, and options of the other engine."""
    engine = params["engine"]
    if engine == "openai" and not params["base_url"]:
        raise click.UsageError("--engine openai needs --base-url, such as http://host:8000/v1")
    other, foreign = ("hf", _LOCAL_OPTIONS) if engine == "openai" else ("openai", _SERVER_OPTIONS)
    defaults = {f.name: f.default for f in fields(EngineSettings)}
    for name in foreign:
        if params.get(name, defaults[name]) != defaults[name]:
            raise click.UsageError(
                f"--{name.replace('_', '-')} belongs to --engine {other}, got --engine {engine}"
            )


_model = option("Model")

_LOCAL = (
    _model("--device", default="auto", help="cpu, cuda, cuda:1, ..."),
    _model(
        "--dtype",
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        default="auto",
        help="Precision of the model.",
    ),
    _model(
        "--think-tags",
        nargs=2,
        metavar="OPEN CLOSE",
        show_default="recognised",
        help="Texts that open and close thinking.",
    ),
)


def _template_arguments(text: str) -> dict[str, Any]:
    try:
        arguments = parse_json(text)
    except ValueError as error:
        raise ValueError(f"expected a JSON object ({error})") from error
    if not isinstance(arguments, dict):
        raise ValueError("expected a JSON object")
    for name in reserved_arguments(arguments):
        raise ValueError(f"expected the template's own arguments ({name!r} is reserved)")
    return arguments


CHAT_TEMPLATE = _model(
    "--chat-template-kwargs",
    type=Parsed("json", _template_arguments),
    default="{}",
    help='Passed to the chat template, such as {"enable_thinking": true}.',
)

API_KEY = _model(
    "--api-key-env",
    metavar="NAME",
    show_default="OPENAI_API_KEY, where set",
    help="Environment variable that holds the server's key.",
)
REQUEST_TIMEOUT = _model(
    "--request-timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=EngineSettings.request_timeout,
    help="Longest time to wait for one answer.",
)
SERVER = (
    _model(
        "--engine",
        type=click.Choice(["hf", "openai"]),
        default=EngineSettings.engine,
        help="Run the model here through transformers, or ask a server such as vLLM.",
    ),
    _model(
        "--base-url",
        metavar="URL",
        multiple=True,
        help="The server, such as http://host:8000/v1; repeat it for several equal servers.",
    ),
    _model(
        "--tokenizer",
        metavar="NAME|FOLDER",
        show_default="the served model's",
        help="Tokenizer of the served model, if it is not found automatically.",
    ),
    _model(
        "--concurrency",
        type=click.IntRange(min=1),
        show_default="32 at a server; here what fits",
        help="Requests to a server at once, or questions in a batch here.",
    ),
    API_KEY,
    REQUEST_TIMEOUT,
    _model(
        "--patience",
        metavar="SECONDS",
        type=click.FloatRange(min=0),
        default=EngineSettings.patience,
        help="Time to retry a request while the server is down or busy.",
    ),
)


def model_name(default: str | None, show_default: str | bool = True) -> Decorator:
    """Declare `--model`."""
    return _model(
        "--model",
        default=default,
        show_default=show_default,
        envvar="STOPADVISOR_MODEL",
        show_envvar=True,
        help="Model name on the Hugging Face hub, or a folder; for a server, the name it serves.",
    )


def model_options(default: str | None, show_default: str | bool = True) -> Callable[[Any], Any]:
    """Declare `--model` and the options of a model that is loaded here."""
    return declare(model_name(default, show_default), *_LOCAL)
