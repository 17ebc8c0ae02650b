"""`stopadvisor probe`: collect the probes of a workload into a run directory.

Nothing here shows an outcome of any question.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import click

from stopadvisor.cli.model import open_engine
from stopadvisor.cli.options import PATH, emit
from stopadvisor.cli.page import Command
from stopadvisor.cli.probe_like import like_policy, like_remark
from stopadvisor.cli.probing import ProbeOptions, probe_options
from stopadvisor.cli.progress import progress_on
from stopadvisor.collection.probing import probe
from stopadvisor.report.documents.probe import probe_document
from stopadvisor.report.screen import Screen
from stopadvisor.report.words import listed, plural, share, shell_quote

__all__ = ["command", "run"]


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
    return run(ProbeOptions.of(params, workload, like), sys.stdout, sys.stderr)


def run(options: ProbeOptions, out: TextIO, err: TextIO) -> int:
    """Probe and say what was collected."""
    with progress_on(err, quiet=options.output.quiet) as progress:
        traces = options.settings.traces is not None
        if options.like is not None and (said := like_remark(options.like, traces=traces)):
            progress.remark(said)
        model = replace(options.model, remark=progress.remark)
        summary = probe(options.settings, partial(open_engine, model), progress)
    document = probe_document(summary)
    emit(document, options.output, out, _show, indent=None)
    if not (options.output.json or options.output.quiet):
        # What is probed like a policy is there to check it.
        step = "assess" if options.like is None else f"verify {shell_quote(options.like)}"
        print(f"next: stopadvisor {step} {shell_quote(document['run'])}", file=err)
    return 0


def _show(document: Mapping[str, Any], out: TextIO) -> None:
    n_questions, n_traces, new = (document[name] for name in ("questions", "traces", "new"))
    several = "" if n_traces == n_questions else f" in {n_traces} traces"
    parts = ", ".join(f"{count} {name}" for name, count in document["split"].items())
    cut, cap = share(document["truncated_share"]), document["max_think"]
    screen = Screen(out)
    screen.headline(f"Probed {plural(n_questions, 'question')}{several}, {new} of them now.")
    rows = [
        ("run", document["run"]),
        ("parts", f"{parts}: fit chooses a rule, calibration certifies it, test checks it"),
        ("probed at", _places(document)),
        ("markers", ", ".join(document["markers"])),
        ("cut off", f"{cut} of the traces, at {cap} thinking tokens"),
    ]
    screen.facts(row for row in rows if row[1])


def _places(document: Mapping[str, Any]) -> str:
    """Positions that hold for every question; nothing where its markers alone say where."""
    if document["every"] is not None:
        return f"every {document['every']} thinking tokens"
    return f"{listed(document['budgets'])} thinking tokens" if document["budgets"] else ""
