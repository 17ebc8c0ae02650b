"""`stopadvisor probe`: collect the probes of a workload into a run directory.

Nothing here shows an outcome of any question.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from stopadvisor.cli.parts.declare import PATH, pop_settings, show
from stopadvisor.cli.parts.help_page import Command
from stopadvisor.cli.parts.ladder import RECORDED_LADDER, check_recording
from stopadvisor.cli.parts.probe_like import like_policy, like_remark
from stopadvisor.cli.parts.probing import probe_options, take_probing
from stopadvisor.collection.probing import probe
from stopadvisor.collection.rung_recording import record_replies
from stopadvisor.engines.engine_settings import EngineSettings, open_engine
from stopadvisor.report.progress import progress_on
from stopadvisor.report.sheets.files import probe_sheet
from stopadvisor.report.words import shell_quote
from stopadvisor.runs.prices import keep_model_files

__all__ = ["command"]


@click.command(
    "probe",
    cls=Command,
    reads="WORKLOAD: JSONL with `question`, a question a line; `gold` where there is any.",
    writes="A run directory (--out, else one under runs/): manifest.json, which says how "
    "it was probed, probes.jsonl, a question a line as each batch ends, and "
    "preflight.json.",
    examples=[
        "stopadvisor probe samples/hard.jsonl --model samples/tiny-reasoner",
        "stopadvisor probe my.jsonl --model Qwen/Qwen3-8B --budgets 0,512,1024,2048",
        "stopadvisor probe my.jsonl --model Qwen/Qwen3-8B --schedule marker",
        "stopadvisor probe fresh.jsonl --like policy.joblib",
        "stopadvisor probe my.jsonl --ladder ladder.toml",
    ],
    exit_codes=(0, 1, 2, 5, 130),
)
@click.argument("workload", type=PATH)
@click.option(
    "--like",
    metavar="POLICY",
    type=PATH,
    help="Probe as POLICY was probed: its budgets, caps, cue, sampling, entropy and template.",
)
@RECORDED_LADDER
@probe_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    workload: Path,
    like: Path | None,
    ladder: Path | None,
    *,
    json: bool,
    quiet: bool,
    **params: Any,
) -> int:
    """Collect forced answers along the thinking of each question in WORKLOAD (JSONL).

    Continues where an earlier call stopped: finished questions are not asked again.  With --ladder
    every rung is asked for a whole reply instead, and nothing is forced.
    """
    if ladder is not None:
        check_recording()
    if like is not None:
        params = like_policy(ctx, params, like, quiet=quiet)
    settings = take_probing(
        params, workload, like_policy=like is not None, ladder=ladder is not None
    )
    engine = pop_settings(EngineSettings, params)
    with progress_on(sys.stderr, quiet=quiet) as progress:
        traces = settings.traces is not None
        if like is not None and (remark := like_remark(like, traces=traces)):
            progress.remark(remark)
        engine = replace(engine, remark=progress.remark)
        if ladder is not None:
            summary = record_replies(settings, engine, ladder, progress)
        else:
            summary = probe(settings, partial(open_engine, engine), progress)
            keep_model_files(engine.model, summary.run)
    show(summary, probe_sheet(summary), json=json)
    if not (json or quiet):
        # What is probed like a policy is there to check it.
        step = "assess" if like is None else f"verify {shell_quote(like)}"
        click.echo(f"next: stopadvisor {step} {shell_quote(summary.run)}", err=True)
    return 0
