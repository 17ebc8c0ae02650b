"""`stopadvisor preflight`: prove that the model does what probing needs, without probing."""

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
from stopadvisor.cli.probing import ProbeOptions, probe_options
from stopadvisor.cli.progress import progress_on
from stopadvisor.collection.cues import CUE_QUESTIONS
from stopadvisor.collection.probing import try_engine
from stopadvisor.errors import PreflightError
from stopadvisor.report.documents.probe import preflight_document
from stopadvisor.report.text.preflight import show_cues, show_report
from stopadvisor.report.text.screen import Screen

__all__ = ["command", "run"]


@click.command(
    "preflight",
    cls=Command,
    reads="WORKLOAD: JSONL with `question`, a question a line; `gold` where there is any.",
    examples=[
        "stopadvisor preflight samples/arithmetic.jsonl --model samples/tiny-reasoner",
        "stopadvisor preflight my.jsonl --model Qwen/Qwen3-8B --compare-cues",
    ],
    exit_codes=(0, 1, 2, 5, 130),
)
@click.argument("workload", type=PATH)
@click.option(
    "--compare-cues",
    is_flag=True,
    help=f"Try every built-in cue, and yours, on {CUE_QUESTIONS} fit questions, or on --limit.",
)
@probe_options
def command(workload: Path, compare_cues: bool, **params: Any) -> int:
    """Check on a few fit questions of WORKLOAD that the model obeys budgets, markers and cue.

    Takes the options of `probe`, and asks up to 16 fit questions, so that probing measures what the
    options say.  `probe` and `assess` do this first, unless --no-preflight.
    """
    options = ProbeOptions.of(params, workload)
    return run(options, sys.stdout, sys.stderr, compare=compare_cues)


for _option in command.params:
    # Taken, so that a line for `probe` does here too, and without effect: nothing is kept.
    if isinstance(_option, click.Option) and _option.name in ("out", "preflight", "regrade"):
        _option.hidden = True


def run(options: ProbeOptions, out: TextIO, err: TextIO, *, compare: bool = False) -> int:
    """Check and report; a failed check is a result here, with its own exit code."""
    settings = options.settings
    with progress_on(err, quiet=options.output.quiet) as progress:
        model = partial(open_engine, replace(options.model, remark=progress.remark))
        report, cues = try_engine(settings, model, progress, compare=compare)

    def show(document: Mapping[str, Any], out: TextIO) -> None:
        screen = Screen(out)
        show_report(report, screen)
        if cues:
            show_cues(cues, settings.cue, screen)

    document = preflight_document(report, cues)
    emit(document, options.output, out, show, indent=None)
    may_go_on = report.status != "fail" and not any(c.name == "questions" for c in report.checks)
    if may_go_on and not (options.output.json or options.output.quiet):
        print("next: the same command with `assess` in the place of `preflight`", file=err)
    return PreflightError.exit_code if report.status == "fail" else 0
