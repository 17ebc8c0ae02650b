"""`stopadvisor import`: logs of evaluation programs as a workload, recorded answers as a run.

No model is asked.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import click

from stopadvisor.cli.options import (
    COUNT,
    OUTPUT,
    PATH,
    OutputOptions,
    Parsed,
    declare,
    emit,
    grader_option,
    is_given,
    take,
)
from stopadvisor.cli.page import Command
from stopadvisor.cli.progress import progress_on, remark_first
from stopadvisor.constants import KNOWN_MARKERS
from stopadvisor.report.text.written import show_import, show_import_log
from stopadvisor.runs.recording import SUFFIX_TOKENS, Recording
from stopadvisor.workload.imports.logged import LogOptions
from stopadvisor.workload.imports.registry import FORMATS
from stopadvisor.workload.imports.tables import COLUMNS
from stopadvisor.workload.questions import TASKS, default_split, parse_split

__all__ = ["ImportLogOptions", "ImportOptions", "command", "run", "run_log"]

PROBES = "probes"
"""The format that becomes a run; all others become a workload."""
_OF_PROBES = ("cap", "suffix_tokens", "model", "grader", "seed", "split")
_OF_LOGS = ("columns", "task", "traces_only", "think_open", "think_close")


@dataclass(frozen=True)
class ImportLogOptions:
    """Which logs to read, and where to put the workload."""

    kind: str
    """One of `FORMATS`."""
    sources: tuple[Path, ...]
    out: Path
    columns: Mapping[str, str] = field(default_factory=dict)
    task: str | None = None
    """None: guessed from gold."""
    traces_only: bool = False
    """Leave out questions without a recorded trace."""
    markers: tuple[str, str] | None = None
    """Opener and closer of thinking; None: those that are known."""
    output: OutputOptions = field(default_factory=OutputOptions)


@dataclass(frozen=True)
class ImportOptions:
    """Recorded answers to read, where to put them, and what is known of how they were recorded."""

    source: Path
    out: Path
    cap: int | None = None
    """None: the longest trace."""
    suffix_tokens: int = SUFFIX_TOKENS
    model: str | None = None
    grader: str | None = None
    """``MODULE:FUNCTION`` for what is right; None: gold."""
    seed: int = 0
    split: tuple[float, float, float] | None = None
    """None: `default_split` of what is read."""
    output: OutputOptions = field(default_factory=OutputOptions)


def _columns(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",")]
    found = {name.strip(): column.strip() for name, _, column in pairs}
    if len(found) < len(pairs) or not all(found.values()) or not found.keys() <= set(COLUMNS):
        known = ", ".join(COLUMNS)
        raise ValueError(f"expected KIND=COLUMN,... with each kind once, of {known}")
    return found


@click.command(
    "import",
    cls=Command,
    reads="FILE: " + "; ".join(f"{name}: {kind.files}" for name, kind in FORMATS.items()) + "; "
    "probes: recorded forced answers, JSONL.",
    writes="A workload, JSONL, with the recorded traces in it; of probes, a run directory.",
    examples=[
        "stopadvisor import inspect logs/2026-11-22_math.eval -o math.jsonl",
        "stopadvisor import lm-eval samples_gsm8k_*.jsonl -o gsm8k.jsonl",
        "stopadvisor import openai-batch output.jsonl input.jsonl -o batch.jsonl",
        "stopadvisor import csv mine.csv --map question=ask,gold=right -o mine.jsonl",
        "stopadvisor import probes recorded.jsonl -o runs/recorded --cap 16384",
    ],
)
@click.argument("kind", metavar="FORMAT", type=click.Choice([*FORMATS, PROBES]))
@click.argument("sources", metavar="FILE...", type=PATH, nargs=-1, required=True)
@click.option("--out", "-o", type=PATH, required=True, help="Workload or run directory to make.")
@click.option(
    "--map",
    "columns",
    type=Parsed("kind=column,...", _columns),
    show_default="as the format has it",
    help=f"What each column holds ({', '.join(COLUMNS)}). For lm-eval name fields of the "
    "question's doc, for promptfoo variables.",
)
@click.option(
    "--task",
    type=click.Choice(TASKS),
    show_default="as gold says",
    help="Kind of answer of all questions.",
)
@click.option(
    "--traces-only",
    is_flag=True,
    help="Leave out questions whose thinking was not recorded, so that probe --traces takes all.",
)
@click.option(
    "--think-open",
    show_default="those of known models",
    help="What begins thinking in a reply's text.",
)
@click.option(
    "--think-close", show_default="those of known models", help="What ends thinking there."
)
@click.option(
    "--cap",
    type=COUNT,
    show_default="the longest trace",
    help="Of probes: cap on thinking, in tokens, under which they were recorded.",
)
@click.option(
    "--suffix-tokens",
    type=click.IntRange(min=0),
    default=SUFFIX_TOKENS,
    help="Of probes: tokens of closer and cue that stood in front of each forced answer.",
)
@click.option(
    "--model-name",
    "model",
    show_default="none: a policy is bound to no model",
    help="Of probes: model that was recorded; a policy is then bound to it.",
)
@grader_option(click.option)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of probes: seed of the split.")
@click.option(
    "--split",
    type=Parsed("fit/cal/test", parse_split),
    show_default="40/60/0 up to 2,000 questions, 40/40/20 above",
    help="Of probes: shares of questions for each part; split once, here.",
)
@declare(*OUTPUT)
@click.pass_context
def command(ctx: click.Context, /, **params: Any) -> int:
    """Make a workload of what an evaluation program logged, or a run of recorded probes.

    A question that was asked several times stands once in the workload, with all its recorded
    traces: thinking and reply, the prompt as it was sent. `probe WORKLOAD --traces WORKLOAD` then
    asks only for forced answers. Gold may be missing; grades of the program are not kept.

    FORMAT `probes` makes a run instead. A line is a trace: id, trace_tokens, finish,
    natural_answer, natural_correct, natural_answer_tokens and checkpoints. Each checkpoint has its
    own budget (thinking tokens before it), answer, correct and probe_tokens, and where known
    mean_logprob, mean_entropy and markers. Labels may be left out where a line has gold, or all of
    them: then replies count by whether they agree with what full thinking answers. With --grader
    no line brings labels, and each has its question and gold.
    """
    kind = params.pop("kind")
    _check_options(ctx, kind, params)
    output = take(OutputOptions, params)
    sources, out = params.pop("sources"), params.pop("out")
    if kind == PROBES:
        own = {name: params[name] for name in _OF_PROBES}
        return run(ImportOptions(sources[0], out, output=output, **own), sys.stdout, sys.stderr)
    pair = None if params["think_open"] is None else (params["think_open"], params["think_close"])
    columns = params["columns"] or {}
    options = ImportLogOptions(
        kind, sources, out, columns, params["task"], params["traces_only"], pair, output
    )
    return run_log(options, sys.stdout, sys.stderr)


def _check_options(ctx: click.Context, kind: str, params: Mapping[str, Any]) -> None:
    """Refuse options of other formats, and formats that lack theirs."""
    others = _OF_LOGS if kind == PROBES else _OF_PROBES
    named = {option.name: option.opts[0] for option in ctx.command.params}
    for name in others:
        if is_given(name):
            raise click.UsageError(f"{named[name]} is no option of format {kind}")
    if kind == PROBES:
        if len(params["sources"]) > 1:
            raise click.UsageError(f"format probes takes one file, got {len(params['sources'])}")
        return
    if (params["think_open"] is None) != (params["think_close"] is None):
        raise click.UsageError("--think-open and --think-close need each other")
    needed, columns = FORMATS[kind].columns, params["columns"]
    if needed == "none" and columns:
        raise click.UsageError(f"--map is no option of format {kind}")
    if needed == "question" and "question" not in (columns or {}):
        raise click.UsageError(f"format {kind} needs --map question=COLUMN")
    if any(params["out"].resolve() == source.resolve() for source in params["sources"]):
        raise click.UsageError(f"--out {params['out']} is a file to be read")


def run_log(options: ImportLogOptions, out: TextIO, err: TextIO) -> int:
    """Read the logs, write the workload, and read back what was written."""
    from stopadvisor.report.documents.written import import_log_document
    from stopadvisor.runs.storage import encode, replace_file
    from stopadvisor.workload.imports.gather import gather
    from stopadvisor.workload.questions import read_workload

    markers = KNOWN_MARKERS if options.markers is None else (options.markers,)
    log = FORMATS[options.kind].read(options.sources, LogOptions(options.columns, markers))
    found = gather(log, task=options.task, traces_only=options.traces_only)
    lines = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in found.lines)
    replace_file(options.out, encode(lines))
    workload = read_workload(options.out)
    with progress_on(err, quiet=options.output.quiet) as progress:
        remark_first(progress, "left out", found.left_out)
        remark_first(progress, "renamed", found.renamed)
        without = found.without_thinking
        if found.n_traces and options.kind in ("csv", "parquet"):
            progress.remark(
                f"{options.columns['question']!r} is asked as it stands: for recorded thinking it "
                "must be the prompt that was sent, with all its instructions"
            )
        if found.n_traces and found.n_untraced:
            progress.remark(
                f"{found.n_untraced} questions have no recorded trace: --traces-only leaves them "
                "out, as probe --traces wants it"
            )
        if without:
            progress.remark(
                f"{len(without)} replies hold no thinking that can be told apart, the first in "
                f"{without[0]}"
            )
    document = import_log_document(options.kind, options.sources, found, workload)
    emit(document, options.output, out, show_import_log, indent=None)
    return 0


def run(options: ImportOptions, out: TextIO, err: TextIO) -> int:
    """Read recorded answers, label them, write the run, and say what was written."""
    from stopadvisor.answers.function_grader import open_graders
    from stopadvisor.report.documents.written import import_document
    from stopadvisor.runs.imported import write_recording
    from stopadvisor.runs.recording import read_recording

    with open_graders(options.grader) as graders:
        recording = read_recording(
            options.source, graders.right, suffix_tokens=options.suffix_tokens, cap=options.cap
        )
        of_grades = graders.right.remarks()
    written = write_recording(
        options.out,
        recording,
        cap=options.cap,
        model=options.model,
        seed=options.seed,
        fractions=options.split or default_split(len(recording.records)),
    )
    with progress_on(err, quiet=options.output.quiet) as progress:
        for sentence in [*_remarks(recording, options), *of_grades]:
            progress.remark(sentence)
    document = import_document(written, recording, options.suffix_tokens, options.model)
    emit(document, options.output, out, show_import, indent=None)
    return 0


def _remarks(recording: Recording, options: ImportOptions) -> list[str]:
    """What the file does not say, and what follows from that."""
    found = []
    if options.cap is None:
        found.append(
            f"no --cap: {recording.longest} tokens, the longest trace, count as the cap on "
            "thinking, which is part of a policy"
        )
    if not any(record.prompt_tokens for record in recording.records):
        found.append("no prompt_tokens: costs leave the prompt out")
    if recording.entropy_source == "none":
        found.append("no log-probabilities: rules that read them are left out")
    return found
