"""`stopadvisor preflight`: check that a model, or the rungs of a ladder, do what a run needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from stopadvisor.cli.parts.command import Command, typed_again
from stopadvisor.cli.parts.declare import PATH, WORKLOAD, Printed, pop_settings
from stopadvisor.cli.parts.probing import probe_options, take_probing
from stopadvisor.collection.probing import try_questions
from stopadvisor.engines.engine_settings import EngineSettings
from stopadvisor.ground.errors import PreflightError
from stopadvisor.ground.progress import Progress
from stopadvisor.report.sheets.files import preflight_sheet
from stopadvisor.report.words import shell_quote

__all__ = ["command"]


@click.command(
    "preflight",
    cls=Command,
    reads=WORKLOAD,
    examples=[
        "stopadvisor preflight samples/arithmetic.jsonl --model samples/tiny-reasoner",
        "stopadvisor preflight my.jsonl --ladder ladder.toml",
    ],
    exit_codes=(0, 1, 2, 5, 130),
)
@click.argument("workload", type=PATH)
@probe_options
def command(progress: Progress, workload: Path, **params: Any) -> Printed:
    """Check on a few questions of WORKLOAD that the model closes its thinking and obeys the cue.

    Takes the options of `probe`, and asks up to 16 fit questions.  `probe` and `assess` do this
    first, unless --no-preflight.  With --ladder: whether each rung replies and ends by itself,
    whether its server obeys the effort, and how often the reference, asked twice, differs from
    itself.
    """
    settings = take_probing(params, workload)
    engine = replace(pop_settings(EngineSettings, params), remark=progress.remark)
    report = try_questions(settings, engine, progress)
    failed = report.status == "fail"
    may_go_on = not failed and not any(check.name == "questions" for check in report.checks)
    then = f"assess {shell_quote(workload)} {typed_again()}".rstrip() if may_go_on else ""
    return Printed(report, preflight_sheet(report), PreflightError.exit_code if failed else 0, then)


for _option in command.params:
    # Accepted without effect, so that the options of a `probe` command work here too.
    if isinstance(_option, click.Option) and _option.name in ("out", "no_preflight", "regrade"):
        _option.hidden = True
