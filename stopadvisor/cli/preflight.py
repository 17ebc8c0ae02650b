"""`stopadvisor preflight`: prove that the model does what probing needs, without probing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import click

from stopadvisor.answers.grading import Grader
from stopadvisor.cli.options import ProbeOptions, in_use, load_engine, probe_options
from stopadvisor.cli.page import Command
from stopadvisor.cli.probe import choose_batch_size, fit_questions, settle_cap
from stopadvisor.cli.progress import progress_on
from stopadvisor.collection.collect import Progress, show_remarks
from stopadvisor.collection.cues import CUE_QUESTIONS, CueComparison, compare_cues
from stopadvisor.collection.preflight import PreflightReport, run_preflight
from stopadvisor.constants import CUES
from stopadvisor.errors import PreflightError, WorkloadError
from stopadvisor.probes.plan import Engine
from stopadvisor.report.text.screen import Screen, Tone, interval, plural, share
from stopadvisor.workload.questions import Question, Workload, read_workload

__all__ = ["command", "run", "show_cues", "show_report"]


@click.command(
    "preflight",
    cls=Command,
    reads="WORKLOAD: JSONL with `question` and `gold`, a question a line.",
    examples=[
        "stopadvisor preflight samples/arithmetic.jsonl --model samples/tiny-reasoner",
        "stopadvisor preflight my.jsonl --model Qwen/Qwen3-8B --compare-cues",
    ],
    exit_codes=(0, 1, 2, 5, 130),
)
@click.argument("workload", type=click.Path(path_type=Path))
@click.option(
    "--compare-cues",
    is_flag=True,
    help=f"Try every built-in cue, and yours, on {CUE_QUESTIONS} fit questions, or on --limit.",
)
@probe_options
def command(workload: Path, compare_cues: bool, **params: Any) -> int:
    """Prove on a few fit questions of WORKLOAD that the model obeys budgets, markers and cue.

    Takes the options of `probe` and asks up to 16 fit questions, to prove that what was asked for
    is what will be measured.  `probe` and `assess` do this first, unless --no-preflight.
    """
    options = ProbeOptions.take(params, workload)
    return run(options, sys.stdout, sys.stderr, compare=compare_cues)


for _option in command.params:
    # Taken, so that a line for `probe` does here too, and without effect: nothing is kept.
    if isinstance(_option, click.Option) and _option.name in ("out", "preflight", "regrade"):
        _option.hidden = True


def run(options: ProbeOptions, out: TextIO, err: TextIO, *, compare: bool = False) -> int:
    """Check and report; a failed check is a result here, with its own exit code."""
    with progress_on(err, quiet=options.output.quiet) as progress:
        workload = read_workload(options.workload)
        fit = fit_questions(workload, options)
        if not fit:
            raise WorkloadError(
                f"{workload.path}: preflight needs at least one fit question, got none out of "
                f"{len(workload.questions)}; add questions or raise the first share of --split"
            )
        engine = load_engine(options)
        with in_use(engine):
            options = options.settled(engine)
            report, cues = _check(engine, workload, fit, options, progress, compare=compare)
    if options.output.json:
        document = report.to_dict() | {"cues": cues and cues.to_dict()}
        print(json.dumps(document, ensure_ascii=False, allow_nan=False), file=out)
    else:
        screen = Screen(out)
        show_report(report, screen)
        if cues:
            show_cues(cues, options.cue, screen)
    return PreflightError.exit_code if report.status == "fail" else 0


def _check(
    engine: Engine,
    workload: Workload,
    fit: Sequence[Question],
    options: ProbeOptions,
    progress: Progress,
    *,
    compare: bool,
) -> tuple[PreflightReport, CueComparison | None]:
    """Check the engine, and compare cues where that was asked for."""
    cues: CueComparison | None = None
    plan = settle_cap(engine, workload, options.plan(), options, progress)
    batch_size = options.batch_size or choose_batch_size(engine, plan)
    with Grader() as grader:
        report = run_preflight(
            engine,
            fit,
            plan,
            grader=grader,
            template=options.prompt_template,
            batch_size=batch_size,
            progress=progress,
        )
        if compare:
            cues = compare_cues(
                engine,
                fit[: options.limit or CUE_QUESTIONS],
                plan,
                _cues(options.cue),
                grader=grader,
                template=options.prompt_template,
                batch_size=batch_size,
                progress=progress,
            )
        show_remarks(engine, progress, set())
    return report, cues


def show_report(report: PreflightReport, screen: Screen) -> None:
    """The verdict, then what was seen of each check and what to do about it."""
    said: dict[str, tuple[str, Tone]] = {
        "pass": ("Preflight passed", "good"),
        "warn": ("Preflight passed with warnings", "doubtful"),
        "fail": ("Preflight failed: measuring would mislead", "bad"),
    }
    text, tone = said[report.status]
    screen.headline(f"{text}, on {plural(report.n_questions, 'fit question')}.", tone)
    screen.facts(
        (c.name, f"{c.status}: {c.detail}" + (f" -> {c.advice}" if c.advice else ""))
        for c in report.checks
    )


def _cues(own: str) -> dict[str, str]:
    """The cues to compare by name: the built-in ones, and the user's where it is another."""
    return dict(CUES) if own in CUES.values() else {**CUES, "yours": own}


def show_cues(cues: CueComparison, own: str, screen: Screen) -> None:
    """The paper's template table: what each cue makes of the same thinking."""
    screen.table(
        f"Cues at the end of thinking, {cues.n_questions} fit questions",
        ("cue", "", "right", "95 %", "agree", "probe", "thinking"),
        (
            (
                f"{row.name} *" if row.cue == own else row.name,
                row.status,
                share(row.forced_accuracy),
                interval(row.ci95, 100),
                share(row.agreement),
                f"{row.mean_probe_tokens:.1f}",
                f"{row.mean_think_tokens:.0f}",
            )
            for row in cues.rows
        ),
        left=2,
    )
    screen.text(
        "* in use; probe and thinking in mean tokens; agree: forced answers that are the natural "
        f"ones, of which {share(cues.natural_accuracy)} are right."
    )
    same = min(row.same_traces for row in cues.rows)
    screen.text(
        "Traces were drawn anew for each cue, under the same seeds"
        + (", and are the same." if same == 1 else f"; {share(same)} or more are the same.")
    )
