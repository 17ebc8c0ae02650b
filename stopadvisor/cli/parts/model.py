"""Options that say which model is run, here or at a server, and how it is loaded.

`EngineSettings` is a plain value; only the declarations below it know click.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import click

from stopadvisor.cli.parts.declare import Decorator, Parsed, declare, option, parse_object
from stopadvisor.ground.errors import ModelError
from stopadvisor.policy.template_arguments import reserved_arguments

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine
    from stopadvisor.engines.openai.engine import OpenAiEngine

__all__ = [
    "API_KEY",
    "CHAT_TEMPLATE",
    "DEFAULT_MODEL",
    "REQUEST_TIMEOUT",
    "SERVER",
    "EngineSettings",
    "check_engine_options",
    "load_engine",
    "model_name",
    "model_options",
    "open_engine",
]

DEFAULT_MODEL = "Qwen/Qwen3-8B"
_OF_SERVER = (
    "base_url", "tokenizer", "api_key_env", "request_timeout", "patience"
)  # fmt: skip
_OF_LOCAL = {"device": "auto", "dtype": "auto"}
"""Options that mean nothing to a server, with their defaults."""


@dataclass(frozen=True)
class EngineSettings:
    """Which model, its chat markers, and where it runs."""

    model: str | None = DEFAULT_MODEL
    of_policy: bool = False
    """Whether a policy names the model, and not the command line."""
    device: str = "auto"
    dtype: str = "auto"
    think_tags: tuple[str, str] | None = None
    """What opens and closes thinking; None: recognised."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    engine: str = "hf"
    base_url: tuple[str, ...] = ()
    tokenizer: str | None = None
    """None: from where the server says that it took the model, else under the model's name."""
    concurrency: int | None = None
    """Requests to a server at once; None for the engine's default."""
    api_key_env: str | None = None
    """None: OPENAI_API_KEY, where it is set."""
    request_timeout: float = 600.0
    patience: float = 300.0
    remark: Callable[[str], None] | None = field(default=None, compare=False)
    """Told when a server is waited for."""

    @property
    def at_server(self) -> bool:
        """Whether a server answers, and not a model that is loaded here."""
        return self.engine == "openai"


def check_engine_options(params: Mapping[str, Any]) -> None:
    """Refuse a server without its address, and options of the engine that is not used."""
    engine = params["engine"]
    if engine == "openai" and not params["base_url"]:
        raise click.UsageError("--engine openai needs --base-url, such as http://host:8000/v1")
    usual = {f.name: f.default for f in fields(EngineSettings) if f.name in _OF_SERVER}
    other, foreign = ("hf", _OF_LOCAL) if engine == "openai" else ("openai", usual)
    for name, default in foreign.items():
        if params.get(name, default) != default:
            raise click.UsageError(
                f"--{name.replace('_', '-')} belongs to --engine {other}, got --engine {engine}"
            )


def load_engine(options: EngineSettings) -> HfEngine | OpenAiEngine:
    """Load the model here, or open it at its server."""
    assert options.model is not None
    if options.at_server:
        from stopadvisor.engines import openai

        how = {name: getattr(options, name) for name in _OF_SERVER[1:]}
        how["retry_timeout"] = how.pop("patience")
        if options.concurrency is not None:
            how["concurrency"] = options.concurrency
        return openai.load_engine(
            options.model, options.base_url, **how, **_chat_options(options), on_wait=options.remark
        )
    from stopadvisor.engines import hf

    return hf.load_engine(
        options.model, device=options.device, dtype=options.dtype, **_chat_options(options)
    )


def _chat_options(options: EngineSettings) -> dict[str, Any]:
    opens, closes = options.think_tags or (None, None)
    kwargs = options.chat_template_kwargs
    return {"think_open": opens, "think_close": closes, "chat_template_kwargs": kwargs}


@contextmanager
def open_engine(options: EngineSettings) -> Iterator[HfEngine | OpenAiEngine]:
    """The loaded model, closed at the end."""
    try:
        loaded = load_engine(options)
    except ModelError as error:
        if not options.of_policy or str(options.model) not in str(error):
            raise
        raise ModelError(f"{error} (the policy names it so; --model says where it is)") from error
    with closing(loaded) as engine:
        yield engine


# --- What only the parser knows -------------------------------------------------------------------

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
    arguments = parse_object(text)
    for name in reserved_arguments(arguments):
        raise ValueError(f"expected arguments of the template's own ({name!r} is reserved)")
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
        help="Tokenizer of the served model, where it is not found by itself.",
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
    """`--model`."""
    return _model(
        "--model",
        default=default,
        show_default=show_default,
        envvar="STOPADVISOR_MODEL",
        show_envvar=True,
        help="Model name on the Hugging Face hub, or a folder; of a server, the name it serves.",
    )


def model_options(default: str | None, show_default: str | bool = True) -> Callable[[Any], Any]:
    """Add `--model`, and where and how it runs if it is loaded here."""
    return declare(model_name(default, show_default), *_LOCAL)
