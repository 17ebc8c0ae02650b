"""`stopadvisor profile-serving`: what requests, thinking, probes and tokens cost in seconds.

Writes the serving profile by which costs are counted in seconds: of a model that is loaded here,
or of a server.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import click

from stopadvisor.cli.model import (
    API_KEY,
    CHAT_TEMPLATE,
    DEFAULT_MODEL,
    REQUEST_TIMEOUT,
    ModelOptions,
    model_options,
    open_local,
)
from stopadvisor.cli.options import (
    COUNT,
    OUTPUT,
    PATH,
    OutputOptions,
    Parsed,
    declare,
    emit,
    is_given,
    option,
    take,
)
from stopadvisor.cli.page import Command
from stopadvisor.cli.progress import progress_on
from stopadvisor.report.documents.profile_serving import serving_profile_document
from stopadvisor.report.text.written import show_profile
from stopadvisor.runs.storage import check_writable, write_json_atomically
from stopadvisor.serving.profiling import ProfileSettings, profile
from stopadvisor.serving.server_profile import measure_server

__all__ = ["ProfileOptions", "command", "run"]


@dataclass(frozen=True)
class ServerOptions:
    """Which server to measure, if any."""

    engine: str = "hf"
    base_url: str | None = None
    api_key_env: str | None = None
    request_timeout: float = 600.0

    @property
    def at_server(self) -> bool:
        """Whether a server is measured, and not a model that is loaded here."""
        return self.engine != "hf"


@dataclass(frozen=True)
class ProfileOptions:
    """What to measure on which model, and where to put it."""

    settings: ProfileSettings = field(default_factory=ProfileSettings)
    model: ModelOptions = field(default_factory=ModelOptions)
    server: ServerOptions = field(default_factory=ServerOptions)
    out: Path = Path("profile.json")
    output: OutputOptions = field(default_factory=OutputOptions)


def _counts(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise ValueError("expected whole numbers >= 1 such as 1,8")
    return tuple(sorted({int(part) for part in parts}))


_COUNTS = Parsed("n,n,...", _counts)

_server = option("Model")
_AT_SERVER = (
    _server(
        "--engine",
        type=click.Choice(["hf", "openai", "vllm"]),
        default=ServerOptions.engine,
        help="Load the model here, or measure an OpenAI-compatible server, such as vLLM.",
    ),
    _server("--base-url", metavar="URL", help="The server, such as http://host:8000/v1."),
    API_KEY,
    REQUEST_TIMEOUT,
)
_LOCAL_ONLY = (
    *("device", "dtype", "allow_pickle_weights", "think_open", "think_close"),
    *("chat_template_kwargs", "checkpoints", "cap", "max_think"),
)


@click.command(
    "profile-serving",
    cls=Command,
    writes="The profile, JSON: --out. `assess --serving-profile` counts in its seconds.",
    examples=[
        "stopadvisor profile-serving --model samples/tiny-reasoner --out profile.json",
        "stopadvisor profile-serving --model Qwen/Qwen3-8B --batch 1,8,32 --device cuda",
        "stopadvisor profile-serving --engine vllm --base-url http://gpu:8000/v1",
    ],
    exit_codes=(0, 1, 2, 130),
)
@model_options(DEFAULT_MODEL)
@declare(*_AT_SERVER)
@click.option("--batch", "batches", type=_COUNTS, default="1,8", help="Questions at once.")
@click.option(
    "--checkpoints", type=_COUNTS, default="4,7,10", help="Numbers of checkpoints to measure."
)
@click.option(
    "--questions", type=COUNT, show_default="16, at a server all", help="Questions to measure with."
)
@click.option(
    "--workload",
    type=PATH,
    show_default="sums of our own",
    help="Take the questions from here (JSONL, no gold needed).",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=ProfileOptions.out,
    help="The profile's file (JSON).",
)
@click.option(
    "--cap", type=COUNT, default=ProfileSettings.cap, help="Most tokens of a forced answer."
)
@click.option(
    "--max-think",
    type=COUNT,
    default=ProfileSettings.max_think,
    help="Cut thinking here, or earlier where the context leaves less.",
)
@declare(CHAT_TEMPLATE, *OUTPUT)
def command(**params: Any) -> int:
    """Measure what requests and tokens cost in seconds, here or at a server.

    With a model that is loaded here also seconds and memory of whole questions: nothing is stopped,
    each thinks to its own end and is probed on the way.
    """
    server = take(ServerOptions, params)
    _check(server)
    if params["questions"] is None and not server.at_server:
        params["questions"] = ProfileSettings.questions
    settings, model = take(ProfileSettings, params), take(ModelOptions, params)
    output = take(OutputOptions, params)
    return run(
        ProfileOptions(settings, model, server, params["out"], output), sys.stdout, sys.stderr
    )


def _check(server: ServerOptions) -> None:
    """Refuse options that say nothing to what is measured."""
    names = [*ServerOptions.__dataclass_fields__][1:]
    if server.at_server:
        names = list(_LOCAL_ONLY)
        if server.base_url is None:
            raise click.UsageError(f"--engine {server.engine} needs --base-url")
    foreign = next(filter(is_given, names), None)
    if foreign is not None:
        other = "hf" if server.at_server else "openai or vllm"
        raise click.UsageError(
            f"--{foreign.replace('_', '-')} belongs to --engine {other}, got --engine "
            f"{server.engine}"
        )


def run(options: ProfileOptions, out: TextIO, err: TextIO) -> int:
    """Measure, write and show."""
    check_writable(options.out.parent)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with progress_on(err, quiet=options.output.quiet) as progress:
        if options.server.at_server:
            server = options.server
            measured = measure_server(
                str(server.base_url),
                str(options.model.model),
                options.settings,
                progress,
                engine=server.engine,
                api_key_env=server.api_key_env,
                request_timeout=server.request_timeout,
            )
        else:
            measured = profile(options.settings, partial(open_local, options.model), progress)
    document = serving_profile_document(measured)
    write_json_atomically(options.out, document)
    path = str(options.out)
    emit(document, options.output, out, lambda document, out: show_profile(document, path, out))
    return 0
