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

from stopadvisor.cli.parts.declare import PATH, show
from stopadvisor.cli.parts.help_page import Command
from stopadvisor.cli.parts.model import open_engine
from stopadvisor.cli.parts.pricing import keep_profile
from stopadvisor.cli.parts.probe_like import like_policy, like_remark
from stopadvisor.cli.parts.probing import ProbeOptions, probe_options
from stopadvisor.cli.parts.progress import progress_on
from stopadvisor.collection.probing import probe
from stopadvisor.report.sheets.files import probe_sheet
from stopadvisor.report.words import shell_quote

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
@probe_options
@click.pass_context
def command(ctx: click.Context, /, workload: Path, like: Path | None, **params: Any) -> int:
    """Collect forced answers along the thinking of each question in WORKLOAD (JSONL).

    Continues where an earlier call stopped: finished questions are not asked again.
    """
    if like is not None:
        params = like_policy(ctx, params, like)
    options = ProbeOptions.of(params, workload, like)
    with progress_on(sys.stderr, quiet=options.output.quiet) as progress:
        traces = options.settings.traces is not None
        if like is not None and (remark := like_remark(like, traces=traces)):
            progress.remark(remark)
        model = replace(options.model, remark=progress.remark)
        summary = probe(options.settings, partial(open_engine, model), progress)
        keep_profile(model.model, summary.run)
    show(summary, probe_sheet(summary), json=options.output.json)
    if not (options.output.json or options.output.quiet):
        # What is probed like a policy is there to check it.
        step = "assess" if like is None else f"verify {shell_quote(like)}"
        click.echo(f"next: stopadvisor {step} {shell_quote(summary.run)}", err=True)
    return 0
