"""`stopadvisor profile-serving`: what requests and tokens cost in seconds.

Writes the serving profile by which costs are counted in seconds: of a model that is loaded here,
or of a server.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from stopadvisor.cli.parts.declare import OUTPUT, Parsed, declare, is_given, option, show, take
from stopadvisor.cli.parts.help_page import Command
from stopadvisor.cli.parts.model import (
    API_KEY,
    CHAT_TEMPLATE,
    DEFAULT_MODEL,
    REQUEST_TIMEOUT,
    EngineSettings,
    model_options,
    open_local,
)
from stopadvisor.cli.parts.progress import progress_on
from stopadvisor.ground.results import to_document
from stopadvisor.report.sheets.files import profile_serving_sheet
from stopadvisor.runs.storage import check_writable, write_json_atomically
from stopadvisor.serving.server_profile import measure_server, profile_model

__all__ = ["command"]


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
        default="hf",
        help="Load the model here, or measure an OpenAI-compatible server, such as vLLM.",
    ),
    _server("--base-url", metavar="URL", help="The server, such as http://host:8000/v1."),
    API_KEY,
    REQUEST_TIMEOUT,
)
_SERVER_ONLY = ("base_url", "api_key_env", "request_timeout")
_LOCAL_ONLY = (
    *("device", "dtype", "allow_pickle_weights", "think_open", "think_close"),
    "chat_template_kwargs",
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
@click.option("--batch", "batches", type=_COUNTS, default="1,8", help="Requests at once.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("profile.json"),
    help="The profile's file (JSON).",
)
@declare(CHAT_TEMPLATE, *OUTPUT)
def command(
    engine: str,
    base_url: str | None,
    api_key_env: str | None,
    request_timeout: float,
    batches: tuple[int, ...],
    out: Path,
    *,
    json: bool,
    quiet: bool,
    **params: Any,
) -> int:
    """Measure what requests and tokens cost in seconds, here or at a server.

    Pieces of work that differ in one thing each are timed: prompts that are new or cached, answers
    of one token or many, at each number of requests at once.
    """
    _check(engine, base_url)
    model = take(EngineSettings, params)
    check_writable(out.parent)
    out.parent.mkdir(parents=True, exist_ok=True)
    with progress_on(sys.stderr, quiet=quiet) as progress:
        if base_url is None:
            measured = profile_model(batches, partial(open_local, model), progress)
        else:
            measured = measure_server(
                base_url,
                str(model.model),
                batches,
                progress,
                engine=engine,
                api_key_env=api_key_env,
                request_timeout=request_timeout,
            )
    write_json_atomically(out, to_document(measured))
    show(measured, profile_serving_sheet(measured, out), json=json)
    return 0


def _check(engine: str, base_url: str | None) -> None:
    """Refuse options that say nothing to what is measured."""
    at_server = engine != "hf"
    if at_server and base_url is None:
        raise click.UsageError(f"--engine {engine} needs --base-url")
    other = "hf" if at_server else "openai or vllm"
    for name in filter(is_given, _LOCAL_ONLY if at_server else _SERVER_ONLY):
        raise click.UsageError(
            f"--{name.replace('_', '-')} belongs to --engine {other}, got --engine {engine}"
        )
