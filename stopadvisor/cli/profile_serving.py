"""`stopadvisor profile-serving`: what requests, thinking, probes and tokens cost in seconds.

Writes the serving profile by which costs are counted in seconds, beside tokens and money: of a
model that is loaded here, or of a server, there with the goodput of a policy too.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO, get_args

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
from stopadvisor.rules.serving_profile import Slo
from stopadvisor.runs.storage import check_writable, write_json_atomically
from stopadvisor.serving.goodput import Arrivals
from stopadvisor.serving.profiling import ProfileSettings, profile
from stopadvisor.serving.server_measurement import ServerOptions, measure_server

__all__ = ["ProfileOptions", "command", "run"]

_SECONDS = click.FloatRange(min=0, min_open=True)


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


def _slo(text: str) -> Slo:
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = 0.0
        if name not in ("ttft", "tpot", "e2e") or not 0 < limits[name] < float("inf"):
            raise ValueError("expected limits in seconds such as ttft=2,tpot=0.05,e2e=60")
    return Slo(**limits)


_COUNTS = Parsed("n,n,...", _counts)

_server = option("Model")
_replay = option("Goodput")
_OWN = ServerOptions()
_AT_SERVER = (
    _server(
        "--engine",
        type=click.Choice(["hf", "openai", "vllm"]),
        default=_OWN.engine,
        help="Load the model here, or measure a server: any OpenAI-compatible one, or vLLM, whose "
        "metrics tell the use of its KV cache.",
    ),
    _server("--base-url", metavar="URL", help="The server, such as http://host:8000/v1."),
    API_KEY,
    REQUEST_TIMEOUT,
    _replay(
        "--slo",
        type=Parsed("ttft=s,tpot=s,e2e=s", _slo),
        help="Find the highest rate of arrival at which 99 of 100 questions keep these limits in "
        "seconds, under --policy and with full thinking, at a server that has the policy.",
    ),
    _replay(
        "--policy", type=PATH, help="The policy that the server, or the gateway, serves under."
    ),
    _replay(
        "--arrivals",
        type=click.Choice(get_args(Arrivals)),
        default=_OWN.arrivals,
        help="Questions arrive at random, or evenly.",
    ),
    _replay(
        "--minutes",
        type=_SECONDS,
        default=_OWN.minutes,
        help="Minutes to measure; running the same command again continues the measurement.",
    ),
    _replay(
        "--block",
        type=click.IntRange(min=20),
        default=_OWN.block,
        help="Fewest questions sent at one rate. The first fifth is not judged. A block is longer "
        "if these would arrive in less than three times the longest limit.",
    ),
    _replay(
        "--seed",
        type=int,
        default=_OWN.seed,
        help="Seed of the questions' order and arrival times.",
    ),
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
    each thinks to its own end and is probed on the way.  With --slo also how many more questions a
    server answers in time under its policy.
    """
    server = take(ServerOptions, params)
    _check(server, params["workload"])
    if params["questions"] is None and not server.at_server:
        params["questions"] = ProfileSettings.questions
    settings, model = take(ProfileSettings, params), take(ModelOptions, params)
    output = take(OutputOptions, params)
    return run(
        ProfileOptions(settings, model, server, params["out"], output), sys.stdout, sys.stderr
    )


def _check(server: ServerOptions, workload: Path | None) -> None:
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
    if (server.slo is None) != (server.policy is None):
        raise click.UsageError("--slo and --policy must be given together")
    if server.slo is not None and server.slo.ttft is None and server.slo.e2e is None:
        raise click.UsageError("--slo needs ttft or e2e: they show when a queue grows")
    if server.slo is not None and workload is None:
        raise click.UsageError("--slo needs --workload, whose questions the policy is for")


def run(options: ProfileOptions, out: TextIO, err: TextIO) -> int:
    """Measure, write and show."""
    check_writable(options.out.parent)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with progress_on(err, quiet=options.output.quiet) as progress:
        if options.server.at_server:
            kept = options.out.with_suffix(".measured.jsonl")
            measured = measure_server(
                options.server, options.settings, str(options.model.model), kept, progress
            )
        else:
            measured = profile(options.settings, partial(open_local, options.model), progress)
    document = serving_profile_document(measured)
    write_json_atomically(options.out, document)
    path = str(options.out)
    emit(document, options.output, out, lambda document, out: show_profile(document, path, out))
    return 0
