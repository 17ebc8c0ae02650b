"""Options that say which engine runs the model, and how a server is asked; shared by commands.

The decorator knows click; the dataclass does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from stopadvisor.engines.openai.engine import OpenAiEngine

__all__ = ["ServerOptions", "server_options"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_LOCAL = {"device": "auto", "dtype": "auto", "batch_size": None}
"""Options of the local engine that mean nothing to a server, with their defaults."""


@dataclass(frozen=True)
class ServerOptions:
    """Which engine, and how to ask a server."""

    engine: str = "hf"
    base_url: tuple[str, ...] = ()
    tokenizer: str | None = None
    """None: from where the server says that it took the model, else under the model's name."""
    concurrency: int | None = None
    """None: found by a ramp."""
    api_key_env: str | None = None
    """None: OPENAI_API_KEY, where it is set."""
    request_timeout: float = 600.0
    patience: float = 300.0

    @classmethod
    def take(cls, params: dict[str, Any]) -> ServerOptions:
        """Take this class's fields out of click's parameters.

        Raises
        ------
        click.UsageError
            A server without its address, or an option of the engine that was not asked for.
        """
        options = cls(**{f.name: params.pop(f.name) for f in fields(cls)})
        if options.engine == "openai":
            if not options.base_url:
                raise click.UsageError(
                    "--engine openai needs --base-url, such as http://host:8000/v1"
                )
            asked = [name for name, usual in _LOCAL.items() if params.get(name, usual) != usual]
        else:
            usual = cls()
            asked = [
                f.name for f in fields(cls) if getattr(options, f.name) != getattr(usual, f.name)
            ]
        if asked:
            name = "--" + asked[0].replace("_", "-")
            other = "hf" if options.engine == "openai" else "openai"
            raise click.UsageError(
                f"{name} belongs to --engine {other}, got --engine {options.engine}"
            )
        return options

    def load(self, model: str, **chat: Any) -> OpenAiEngine:
        """Open the served model; `chat` is what `engines.openai.load_engine` takes of markers.

        Raises
        ------
        ModelError
            The server cannot be reached or used, or packages are missing.
        """
        from stopadvisor.engines import openai

        return openai.load_engine(
            model,
            self.base_url,
            tokenizer=self.tokenizer,
            concurrency=self.concurrency,
            api_key_env=self.api_key_env,
            request_timeout=self.request_timeout,
            patience=self.patience,
            **chat,
        )


_OPTIONS = (
    click.option(
        "--engine",
        type=click.Choice(["hf", "openai"]),
        default=ServerOptions.engine,
        help="Run the model here through transformers, or ask a server such as vLLM.",
    ),
    click.option(
        "--base-url",
        metavar="URL",
        multiple=True,
        help="The server, such as http://host:8000/v1; several equal ones share the questions.",
    ),
    click.option(
        "--tokenizer",
        metavar="NAME|FOLDER",
        show_default="the served model's",
        help="Tokenizer of the served model, where it is not found by itself.",
    ),
    click.option(
        "--concurrency",
        type=click.IntRange(min=1),
        show_default="found by a short ramp",
        help="Most requests to the server at once; where thinking overlaps with its probes, most "
        "questions, each with up to two requests.",
    ),
    click.option(
        "--api-key-env",
        metavar="NAME",
        show_default="OPENAI_API_KEY, where set",
        help="Environment variable that holds the server's key.",
    ),
    click.option(
        "--request-timeout",
        metavar="SECONDS",
        type=click.FloatRange(min=0, min_open=True),
        default=ServerOptions.request_timeout,
        help="Time that the server may take over one answer.",
    ),
    click.option(
        "--patience",
        metavar="SECONDS",
        type=click.FloatRange(min=0),
        default=ServerOptions.patience,
        help="Time for which a request is tried again while the server is down or busy.",
    ),
)


def server_options(function: _Function) -> _Function:
    """Add the options of `ServerOptions`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
