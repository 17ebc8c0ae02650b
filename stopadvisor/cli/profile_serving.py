"""`stopadvisor profile-serving`: what thinking, probes and tokens cost in seconds here.

Writes the serving profile by which costs are counted in seconds, beside tokens and money.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import click

from stopadvisor.cli.model import (
    CHAT_TEMPLATE,
    DEFAULT_MODEL,
    ModelOptions,
    model_options,
    open_local,
)
from stopadvisor.cli.options import COUNT, OUTPUT, PATH, OutputOptions, Parsed, declare, emit, take
from stopadvisor.cli.page import Command
from stopadvisor.cli.progress import progress_on
from stopadvisor.report.documents.profile_serving import serving_profile_document
from stopadvisor.report.text.written import show_profile
from stopadvisor.runs.storage import check_writable, write_json_atomically
from stopadvisor.serving.profiling import ProfileSettings, profile

__all__ = ["ProfileOptions", "command", "run"]


@dataclass(frozen=True)
class ProfileOptions:
    """What to measure on which model, and where to put it."""

    settings: ProfileSettings = field(default_factory=ProfileSettings)
    model: ModelOptions = field(default_factory=ModelOptions)
    out: Path = Path("profile.json")
    output: OutputOptions = field(default_factory=OutputOptions)


def _counts(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise ValueError("expected whole numbers >= 1 such as 1,8")
    return tuple(sorted({int(part) for part in parts}))


_COUNTS = Parsed("n,n,...", _counts)


@click.command(
    "profile-serving",
    cls=Command,
    writes="The profile, JSON: --out. `assess --serving-profile` counts in its seconds.",
    examples=[
        "stopadvisor profile-serving --model samples/tiny-reasoner --out profile.json",
        "stopadvisor profile-serving --model Qwen/Qwen3-8B --batch 1,8,32 --device cuda",
    ],
    exit_codes=(0, 1, 2, 130),
)
@model_options(DEFAULT_MODEL, served=False)
@click.option("--batch", "batches", type=_COUNTS, default="1,8", help="Questions at once.")
@click.option(
    "--checkpoints", type=_COUNTS, default="4,7,10", help="Numbers of checkpoints to measure."
)
@click.option(
    "--questions", type=COUNT, default=ProfileSettings.questions, help="Questions to measure with."
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
    """Measure seconds and memory per question with probes, and seconds per token.

    Nothing is stopped: each question thinks to its own end and is probed on the way.
    """
    settings, model = take(ProfileSettings, params), take(ModelOptions, params)
    options = ProfileOptions(settings, model, output=take(OutputOptions, params), **params)
    return run(options, sys.stdout, sys.stderr)


def run(options: ProfileOptions, out: TextIO, err: TextIO) -> int:
    """Measure, write and show."""
    check_writable(options.out.parent)
    with progress_on(err, quiet=options.output.quiet) as progress:
        measured = profile(options.settings, partial(open_local, options.model), progress)
    document = serving_profile_document(measured)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomically(options.out, document)
    path = str(options.out)
    emit(document, options.output, out, lambda document, out: show_profile(document, path, out))
    return 0
