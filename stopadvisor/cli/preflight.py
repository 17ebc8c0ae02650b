"""`stopadvisor preflight`: check that a model, or the rungs of a ladder, do what a run needs."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from stopadvisor.cli.parts.command import Command, typed_again
from stopadvisor.cli.parts.declare import PATH, pop_settings, show
from stopadvisor.cli.parts.probing import RECORDED_LADDER, probe_options, take_probing
from stopadvisor.collection.model_checks import LadderPreflight, PreflightReport
from stopadvisor.collection.probing import try_questions
from stopadvisor.collection.rung_recording import try_rungs
from stopadvisor.engines.engine_settings import EngineSettings, open_engine
from stopadvisor.ground.errors import PreflightError
from stopadvisor.report.progress import progress_on
from stopadvisor.report.sheets.files import preflight_sheet
from stopadvisor.report.words import shell_quote

__all__ = ["command"]


@click.command(
    "preflight",
    cls=Command,
    reads="WORKLOAD: JSONL with `question`, a question a line; `gold` where there is any.",
    examples=[
        "stopadvisor preflight samples/arithmetic.jsonl --model samples/tiny-reasoner",
        "stopadvisor preflight my.jsonl --ladder ladder.toml",
    ],
    exit_codes=(0, 1, 2, 5, 130),
)
@click.argument("workload", type=PATH)
@RECORDED_LADDER
@probe_options
def command(workload: Path, ladder: Path | None, *, json: bool, quiet: bool, **params: Any) -> int:
    """Check on a few questions of WORKLOAD that the model closes its thinking and obeys the cue.

    Takes the options of `probe`, and asks up to 16 fit questions, so that probing measures what the
    options say.  `probe` and `assess` do this first, unless --no-preflight.  With --ladder: whether
    each rung replies and ends by itself, whether its server obeys the effort, and how often the
    reference, asked twice, differs from itself.
    """
    settings = take_probing(params, workload, ladder=ladder)
    engine = pop_settings(EngineSettings, params)
    with progress_on(sys.stderr, quiet=quiet) as progress:
        engine = replace(engine, remark=progress.remark)
        report: PreflightReport | LadderPreflight
        if ladder is not None:
            report = try_rungs(settings, engine, ladder, progress)
        else:
            report = try_questions(settings, partial(open_engine, engine), progress)
    show(report, preflight_sheet(report), json=json)
    may_go_on = report.status != "fail" and not any(c.name == "questions" for c in report.checks)
    if may_go_on and not (json or quiet):
        command = f"stopadvisor assess {shell_quote(workload)} {typed_again()}".rstrip()
        click.echo(f"next: {command}", err=True)
    return PreflightError.exit_code if report.status == "fail" else 0


for _option in command.params:
    # Accepted, so that the options of a `probe` command work here too, but without effect.
    if isinstance(_option, click.Option) and _option.name in ("out", "no_preflight", "regrade"):
        _option.hidden = True
