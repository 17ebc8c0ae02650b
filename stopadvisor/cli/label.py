"""`stopadvisor label`: give gold to the few calibration questions for which it matters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import click

from stopadvisor.answers.grading import Grader
from stopadvisor.answers.normal_form import check_gold
from stopadvisor.assessment.settings import asked_alpha
from stopadvisor.certification.certify import CertifyRequest, start_labelling
from stopadvisor.certification.labelling import LabelledRun, LabelRun
from stopadvisor.cli.parts.command import Command, typed_again
from stopadvisor.cli.parts.declare import COUNT, OUTPUT, PATH, declare, option, pop_settings, show
from stopadvisor.cli.parts.settings import DESPITE, overrides, setting_options
from stopadvisor.ground.errors import CalibrationError, WorkloadError
from stopadvisor.ground.progress import Progress
from stopadvisor.report.progress import progress_on
from stopadvisor.report.screen import Screen
from stopadvisor.report.sheet import Section
from stopadvisor.report.sheets.plan import label_sheet
from stopadvisor.report.words import plural
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.labels import LabelSheet, read_sheet, write_sheet
from stopadvisor.runs.sources import open_source, read_assessment
from stopadvisor.runs.storage import lock_directory
from stopadvisor.workload.questions import read_workload

__all__ = ["ask", "begin", "command", "finish"]

_DRAWS = 20
"""Draws, before each question, to estimate how many labels are still worth asking for."""
_MOST_ANSWERS = 9
"""Answers that have a key; others are typed."""

_certificate = option("Certificate")


@click.command(
    "label",
    cls=Command,
    reads="RUN: a run directory without gold for every calibration question, and the workload that "
    "it was made from. With --import a sheet: JSONL or CSV with `id` and `gold`; gold is null if "
    "nobody can tell, empty if not filled in.",
    writes="labels.jsonl in RUN, a line for each answer; the look in its looks.jsonl. With "
    "--export a sheet: `id`, `question`, `answers`, and `gold` to fill in.",
    examples=[
        "stopadvisor label runs/my-Qwen3-8B-1a2b3c4d --alpha 0.05",
        "stopadvisor label runs/my-Qwen3-8B-1a2b3c4d --alpha 0.05 --export sheet.csv",
        "stopadvisor label runs/my-Qwen3-8B-1a2b3c4d --alpha 0.05 --import sheet.csv",
    ],
    exit_codes=(0, 2, 130),
)
@click.argument("path", metavar="RUN", type=PATH)
@click.option("--labeller", default="", help="Name of the labeller, if there are several.")
@click.option("--export", type=PATH, help="Write a sheet of questions to label elsewhere.")
@click.option("--import", "sheet", type=PATH, help="Read labels from a filled-in sheet.")
@click.option("--limit", type=COUNT, default=150, help="Most questions to export.")
@_certificate(
    "--labels",
    type=COUNT,
    help="Number of labels you plan to give; fixed when labelling begins. If the fit questions "
    "favour it, only a sample of the differing replies is labelled, and the test counts how many "
    "differ in all. Without it `label` asks for every label that can change a decision.",
)
@setting_options(otherwise="as assessed")
@_certificate(
    "--fresh",
    is_flag=True,
    help="Use only calibration questions that no look has used, as `calibrate --fresh` does.",
)
@DESPITE
@declare(*OUTPUT)
def command(
    path: Path,
    labeller: str,
    export: Path | None,
    sheet: Path | None,
    limit: int,
    *,
    json: bool,
    quiet: bool,
    **params: Any,
) -> int:
    """Label the calibration questions of RUN that decide what `calibrate --loss lost` certifies.

    Asks about one question at a time, in an order fixed beforehand, and never says which answer
    stopping would give. Each answer is saved at once; quit at any time, and continue with the same
    command. The settings are those of the certificate: give `calibrate` the same ones.
    """
    request = pop_settings(CertifyRequest, params, overrides=overrides(params))
    asked = request.overrides
    if asked.loss not in (None, "lost") or asked.also:
        raise click.UsageError("labels say which answers are lost: only --loss lost takes them")
    if export is not None and sheet is not None:
        raise click.UsageError("--export and --import cannot be combined")
    if export is None and sheet is None and not sys.stdin.isatty():
        raise click.UsageError(
            "answers are typed on a terminal, and stdin is not one: --export FILE writes the "
            "questions to label elsewhere, --import FILE reads the labels"
        )
    with progress_on(sys.stderr, quiet=quiet) as progress:
        begun = begin(path, request, progress)
    if sheet is not None:
        tasks = {name: record.task for name, record in begun.records.items()}
        begun.file.add(read_sheet(sheet, begun.directory, tasks), labeller)
    elif export is None:
        typed = partial(click.prompt, "right answer", default="", show_default=False, err=True)
        ask(begun, labeller, sys.stderr, click.getchar, typed)
    labelled = finish(begun, path, export, limit)
    again = typed_again("alpha", "labeller", "export", "sheet", "limit")
    show(labelled, label_sheet(labelled, again), json=json)
    return 0


def begin(path: Path, request: CertifyRequest, progress: Progress) -> LabelRun:
    """Take the look, and open the questions to label."""
    source = open_source(path)
    if source.is_archive:
        raise CalibrationError(f"{path}: an archive has its gold: nothing to label")
    alpha = asked_alpha(request.overrides.alpha, read_assessment(source.folder))
    lost = replace(request.overrides, loss="lost", alpha=alpha)
    with lock_directory(source.folder):
        run = start_labelling(source, replace(request, overrides=lost))
    texts, missing = _questions(run.directory)
    progress.notes(filter(None, (run.file.repair(), missing)))
    return replace(run, texts=texts)


def ask(
    run: LabelRun, labeller: str, err: TextIO, key: Callable[[], str], line: Callable[[], str]
) -> None:
    """Ask one labeller until they quit or no label can matter; others' labels are not shown.

    `key` waits for a key, `line` for a typed answer.  Each label is on disk before the next
    question.
    """
    screen = Screen(err)
    with Grader() as grader:
        while True:
            mine = run.file.read().get(labeller, {})
            known = run.known({labeller: mine}, grader)
            state = run.labelling.state(known.grades, n_draws=_DRAWS)
            row = state.walk.wanted
            if row is None:
                screen.text("No further label can change what is certified.")
                return
            record = run.records[run.labelling.questions.ids[row]]
            answers = run.labelling.answers(row, record)[:_MOST_ANSWERS]
            progress = (
                f"{plural(len(mine), 'question')} labelled, about {state.labels:.0f} still worth "
                f"asking ({state.saving_pp:+.1f} points of saving)"
            )
            keys = tuple((f"[{key}]", answer) for key, answer in enumerate(answers, start=1))
            screen.title(f"Question {record.id}")
            screen.text(run.texts.get(record.key, f"(question {record.id})"))
            screen.section(
                Section(rows=keys, texts=(progress, "n neither, c cannot tell, u undo, q quit"))
            )
            pressed = _pressed(key, screen, len(answers), can_undo=bool(mine))
            gold = None
            if pressed == "q":
                return
            if pressed == "u":
                run.file.withdraw(list(mine)[-1], labeller)
                continue
            if pressed == "n":
                gold = line().strip()
                try:
                    check_gold(record.task, gold)
                except ValueError:
                    screen.text(f"That is not an answer of kind {record.task}: press a key.")
                    continue
            elif pressed != "c":
                gold = answers[int(pressed) - 1]
            run.file.add({record.id: gold}, labeller)


def _pressed(key: Callable[[], str], screen: Screen, n_answers: int, *, can_undo: bool) -> str:
    """Read keys until one means something: a number, n, c, u or q."""
    while True:
        pressed = key().lower()
        if pressed in ("q", "\x04"):
            return "q"
        if pressed == "u" and not can_undo:
            screen.text("There is no label to undo.")
        elif pressed in ("u", "n", "c") or (pressed.isdecimal() and 1 <= int(pressed) <= n_answers):
            return pressed
        else:
            screen.text(f"Press 1 to {n_answers}, n, c, u or q.")


def finish(run: LabelRun, path: Path, export: Path | None, most: int) -> LabelledRun:
    """Return what the labels certify so far; write the sheet for `--export`."""
    labelling, settings = run.labelling, run.labelling.choice.settings
    with Grader() as grader:
        known = run.known(run.file.read(), grader)
    state = labelling.state(known.grades)
    sheets: list[LabelSheet] | None = None
    if export is not None:
        sheets = []
        for row in state.likely[:most].tolist():
            record = run.records[labelling.questions.ids[row]]
            answers = tuple(labelling.answers(row, record))
            sheets.append(LabelSheet(record.id, run.texts.get(record.key, ""), answers))
        write_sheet(export, sheets, run.directory)
    return LabelledRun(
        run=str(path),
        alpha=settings.alpha,
        delta=settings.delta,
        n=labelling.questions.n_questions,
        planned=labelling.labels,
        sampled=labelling.plan.labels if labelling.plan.is_sample else None,
        labels=known.counts(state),
        certified_saving_pct=state.saving_pct,
        labellers=known.labellers,
        disagreements=known.disagreeing,
        file=str(run.file.path),
        exported=None if export is None else str(export),
        n_exported=None if sheets is None else len(sheets),
    )


def _questions(run: RunDirectory) -> tuple[dict[str, str], str | None]:
    """Return the question texts by key, and a remark if they cannot be read."""
    try:
        workload = read_workload(run.manifest["workload"]["path"])
    except WorkloadError as error:
        return ({}, f"questions are shown by id, because their workload cannot be read: {error}")
    return {
        question.key: "\n".join(message["content"] for message in question.messages)
        for question in workload.questions
    }, None
