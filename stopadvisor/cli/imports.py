"""`stopadvisor import`: benchmarks and logs of evaluation programs as a workload, probes as a run.

No model is asked.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from stopadvisor.cli.parts.declare import (
    COUNT,
    OUTPUT,
    PATH,
    Parsed,
    declare,
    grader_option,
    is_given,
    show,
)
from stopadvisor.cli.parts.help_page import Command
from stopadvisor.ground.constants import KNOWN_MARKERS
from stopadvisor.report.progress import progress_on, remark_first
from stopadvisor.report.sheets.files import (
    import_dataset_sheet,
    import_log_sheet,
    import_probes_sheet,
    import_replies_sheet,
)
from stopadvisor.runs.recording import SUFFIX_TOKENS, Recording
from stopadvisor.workload.converters import BENCHMARKS
from stopadvisor.workload.imports.logged import LogOptions
from stopadvisor.workload.imports.registry import FORMATS
from stopadvisor.workload.imports.tables import COLUMNS
from stopadvisor.workload.questions import TASKS, default_split, parse_split

__all__ = ["command"]

PROBES = "probes"
"""The format that becomes a run; all others become a workload."""
REPLIES = "replies"
"""The format of replies of a ladder, which become a run too."""
DATASET = "dataset"
"""The format whose source is a benchmark's name."""
_OF_PROBES = ("cap", "suffix_tokens", "model", "grader", "seed", "split")
_OF_REPLIES = ("ladder", "grader", "seed", "split")
_OF_DATASET = ("questions", "copy", "seed")
_OF_LOGS = ("columns", "task", "traces_only", "think_tags")
_OF_ALL = ("sources", "out", "json", "quiet")


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
    "probes: recorded forced answers, JSONL; replies: recorded replies of several rungs, JSONL; "
    "dataset: a name of " + ", ".join(BENCHMARKS) + ".",
    writes="A workload, JSONL, with the recorded traces in it; of probes and replies, a run "
    "directory.",
    examples=[
        "stopadvisor import inspect logs/2026-11-22_math.eval -o math.jsonl",
        "stopadvisor import lm-eval samples_gsm8k_*.jsonl -o gsm8k.jsonl",
        "stopadvisor import csv mine.csv --map question=ask,gold=right -o mine.jsonl",
        "stopadvisor import dataset gsm8k -n 300 -o gsm8k.jsonl",
        "stopadvisor import dataset math500 --from MATH-500/test.jsonl -o math500.jsonl",
        "stopadvisor import probes recorded.jsonl -o runs/recorded --max-think 16384",
        "stopadvisor import replies replies.jsonl --ladder ladder.toml -o runs/ladder",
    ],
)
@click.argument("kind", metavar="FORMAT", type=click.Choice([*FORMATS, PROBES, REPLIES, DATASET]))
@click.argument("sources", metavar="FILE...", type=PATH, nargs=-1, required=True)
@click.option("--out", "-o", type=PATH, required=True, help="Workload or run directory to make.")
@click.option(
    "--map",
    "columns",
    type=Parsed("kind=column,...", _columns),
    show_default="as the format has it",
    help=f"What each column holds ({', '.join(COLUMNS)}). For lm-eval name fields of the "
    "question's doc.",
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
    help="Leave out questions whose thinking was not recorded, so that `probe --traces` takes the "
    "file.",
)
@click.option(
    "--think-tags",
    nargs=2,
    metavar="OPEN CLOSE",
    show_default="those of known models",
    help="Texts that open and close thinking in a reply.",
)
@click.option(
    "--max-think",
    "cap",
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
    "--model",
    show_default="none: a policy is bound to no model",
    help="Of probes: model that was recorded; a policy is then bound to it.",
)
@click.option(
    "--ladder",
    metavar="LADDER.TOML",
    type=PATH,
    show_default="none: replies need one",
    help="Of replies: the rungs in the order of climbing, the reference last, with their prices.",
)
@grader_option(click.option)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    help="Of probes and replies: seed of the split. Of a dataset: seed of the draw, and of "
    "GPQA's options.",
)
@click.option(
    "--split",
    type=Parsed("fit/cal/test", parse_split),
    show_default="40/60/0 up to 2,000 questions, 40/40/20 above",
    help="Of probes and replies: shares of questions for each part; split once, here.",
)
@click.option(
    "--limit",
    "-n",
    "questions",
    type=COUNT,
    show_default="as many as the paper used",
    help="Of a dataset: how many to draw; a larger number keeps all of a smaller one.",
)
@click.option(
    "--from",
    "copy",
    metavar="FILE|FOLDER",
    type=PATH,
    show_default="the Hugging Face hub",
    help="Of a dataset: a copy in its own columns: JSON, JSONL, Parquet, CSV, or a hub's folder.",
)
@declare(*OUTPUT)
@click.pass_context
def command(ctx: click.Context, /, **params: Any) -> int:
    """Make a workload of a program's log or a public benchmark, or a run of recorded probes.

    A question that was asked several times becomes one line of the workload, with all its recorded
    traces: thinking and reply, and the prompt as it was sent. `probe WORKLOAD --traces WORKLOAD`
    then asks only for forced answers. Gold may be missing; the program's grades are not kept.

    FORMAT `dataset` draws a benchmark, with the splits and gold rules of the paper (extra
    `datasets`; GPQA needs a login at the hub).

    FORMAT `probes` makes a run instead. A line is a trace: id, trace_tokens, finish,
    natural_answer, natural_correct, natural_answer_tokens and checkpoints. Each checkpoint has its
    own budget (thinking tokens before it), answer, correct and probe_tokens, and where known
    mean_logprob, mean_entropy and markers. Labels may be left out where a line has gold, or all of
    them: then replies count by whether they agree with what full thinking answers. With --grader
    no line brings labels, and each has its question and gold.

    FORMAT `replies` makes a run of whole replies, one of each rung of LADDER.TOML. A line is a
    question: id, gold and rungs, each with name, answer, finished and completion_tokens, and where
    known correct, prompt_tokens, cached_tokens and mean_logprob.
    """
    _check_options(ctx, params["kind"], params)
    if params["kind"] == PROBES:
        _import_probes(**{name: params[name] for name in (*_OF_PROBES, *_OF_ALL)})
    elif params["kind"] == REPLIES:
        _import_replies(**{name: params[name] for name in (*_OF_REPLIES, *_OF_ALL)})
    elif params["kind"] == DATASET:
        _import_dataset(**{name: params[name] for name in (*_OF_DATASET, *_OF_ALL)})
    else:
        _import_log(**{name: params[name] for name in ("kind", *_OF_LOGS, *_OF_ALL)})
    return 0


def _check_options(ctx: click.Context, kind: str, params: Mapping[str, Any]) -> None:
    """Refuse options of other formats, and formats that lack theirs."""
    own = {PROBES: _OF_PROBES, REPLIES: _OF_REPLIES, DATASET: _OF_DATASET}.get(kind, _OF_LOGS)
    every = (*_OF_PROBES, *_OF_REPLIES, *_OF_DATASET, *_OF_LOGS)
    others = [name for name in every if name not in own]
    named = {option.name: option.opts[0] for option in ctx.command.params}
    for name in others:
        if is_given(name):
            raise click.UsageError(f"{named[name]} is no option of format {kind}")
    if kind in (PROBES, REPLIES):
        if len(params["sources"]) > 1:
            raise click.UsageError(f"format {kind} takes one file, got {len(params['sources'])}")
        if kind == REPLIES and params["ladder"] is None:
            raise click.UsageError("format replies needs --ladder LADDER.TOML")
        return
    if kind == DATASET:
        names = [str(source) for source in params["sources"]]
        if len(names) > 1 or names[0] not in BENCHMARKS:
            known = ", ".join(BENCHMARKS)
            raise click.UsageError(f"format dataset takes one of {known}, got {' '.join(names)}")
        return
    needed, columns = FORMATS[kind].columns, params["columns"]
    if needed == "none" and columns:
        raise click.UsageError(f"--map is no option of format {kind}")
    if needed == "question" and "question" not in (columns or {}):
        raise click.UsageError(f"format {kind} needs --map question=COLUMN")
    if any(params["out"].resolve() == source.resolve() for source in params["sources"]):
        raise click.UsageError(f"--out {params['out']} is a file to be read")


def _import_log(
    kind: str,
    sources: tuple[Path, ...],
    out: Path,
    columns: dict[str, str] | None,
    task: str | None,
    think_tags: tuple[str, str] | None,
    *,
    traces_only: bool,
    json: bool,
    quiet: bool,
) -> None:
    """Read the logs, write the workload, and read back what was written."""
    from stopadvisor.runs.imported import write_log
    from stopadvisor.workload.imports.gather import gather

    columns = columns or {}
    markers = KNOWN_MARKERS if think_tags is None else (think_tags,)
    with progress_on(sys.stderr, quiet=quiet) as progress:
        log = FORMATS[kind].read(sources, LogOptions(columns, markers))
        gathered = gather(log, task=task, traces_only=traces_only)
        imported = write_log(kind, sources, gathered, out)
        remark_first(progress, "left out", gathered.left_out)
        remark_first(progress, "renamed", gathered.renamed)
        without = gathered.without_thinking
        if gathered.n_traces and kind in ("csv", "parquet"):
            progress.remark(
                f"{columns['question']!r} is asked as it stands: for recorded thinking it must be "
                "the prompt that was sent, with all its instructions"
            )
        if gathered.n_traces and gathered.n_untraced:
            progress.remark(
                f"{gathered.n_untraced} questions have no recorded trace: --traces-only leaves "
                "them out, as probe --traces wants it"
            )
        if without:
            progress.remark(
                f"{len(without)} replies hold no thinking that can be separated, the first in "
                f"{without[0]}"
            )
    show(imported, import_log_sheet(imported), json=json)


def _import_dataset(
    sources: tuple[Path, ...],
    out: Path,
    questions: int | None,
    copy: Path | None,
    seed: int,
    *,
    json: bool,
    quiet: bool,
) -> None:
    """Draw a benchmark, write the workload, and read back what was written."""
    from stopadvisor.runs.imported import write_dataset
    from stopadvisor.workload.converters import convert, load_rows

    name = str(sources[0])
    wanted = questions or BENCHMARKS[name].size
    with progress_on(sys.stderr, quiet=quiet) as progress:
        converted = convert(name, load_rows(name, copy, quiet=quiet), wanted, seed=seed)
        imported = write_dataset(name, converted, out, copy=copy, seed=seed)
        remark_first(progress, "left out", converted.left_out)
        if imported.n_questions < wanted:
            progress.remark(
                f"{wanted} questions were wanted, the data set has {imported.n_questions}"
            )
    show(imported, import_dataset_sheet(imported), json=json)


def _import_probes(
    sources: tuple[Path, ...],
    out: Path,
    cap: int | None,
    suffix_tokens: int,
    model: str | None,
    grader: str | None,
    seed: int,
    split: tuple[float, float, float] | None,
    *,
    json: bool,
    quiet: bool,
) -> None:
    """Read recorded answers, label them, write the run, and say what was written."""
    from stopadvisor.answers.function_grader import open_graders
    from stopadvisor.runs.imported import imported_probes, write_recording
    from stopadvisor.runs.recording import read_recording

    with progress_on(sys.stderr, quiet=quiet) as progress:
        with open_graders(grader) as graders:
            recording = read_recording(
                sources[0], graders.right, suffix_tokens=suffix_tokens, cap=cap
            )
            of_grades = graders.right.remarks()
        fractions = split or default_split(len(recording.records))
        run = write_recording(out, recording, cap=cap, model=model, seed=seed, fractions=fractions)
        for sentence in [*_remarks(recording, cap), *of_grades]:
            progress.remark(sentence)
    imported = imported_probes(run, recording, suffix_tokens=suffix_tokens, model=model)
    show(imported, import_probes_sheet(imported), json=json)


def _import_replies(
    sources: tuple[Path, ...],
    out: Path,
    ladder: Path,
    grader: str | None,
    seed: int,
    split: tuple[float, float, float] | None,
    *,
    json: bool,
    quiet: bool,
) -> None:
    """Read recorded replies, label them, write the run, and say what was written."""
    from stopadvisor.answers.function_grader import open_graders
    from stopadvisor.runs.imported import imported_replies, write_replies
    from stopadvisor.runs.ladder import read_ladder
    from stopadvisor.runs.replies import read_replies

    rungs = read_ladder(ladder)
    with progress_on(sys.stderr, quiet=quiet) as progress:
        with open_graders(grader) as graders:
            recorded = read_replies(sources[0], rungs, graders.right)
            of_grades = graders.right.remarks()
        fractions = split or default_split(len(recorded.records))
        run = write_replies(out, recorded, rungs, seed=seed, fractions=fractions)
        for sentence in of_grades:
            progress.remark(sentence)
    imported = imported_replies(run, recorded, rungs)
    show(imported, import_replies_sheet(imported), json=json)


def _remarks(recording: Recording, cap: int | None) -> list[str]:
    """What the file does not say, and what follows from that."""
    found = []
    if cap is None:
        found.append(
            f"no --max-think: {recording.longest} tokens, the longest trace, count as the cap on "
            "thinking, which is part of a policy"
        )
    if not any(record.prompt_tokens for record in recording.records):
        found.append("no prompt_tokens: costs leave the prompt out")
    if recording.positions_are_markers:
        found.append(
            "each question was asked at positions of its own: they count as its markers' positions"
        )
    if recording.entropy_source == "none":
        found.append("no log-probabilities: rules that read them are left out")
    return found
