"""`stopadvisor import`: make a workload from a benchmark or log, or a run from answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from stopadvisor.answers.grading import open_graders
from stopadvisor.cli.parts.command import Command
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
from stopadvisor.ground.constants import KNOWN_MARKERS
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.ground.progress import Progress
from stopadvisor.policy.rung_policies import read_rungs
from stopadvisor.report.progress import progress_on, remark_first
from stopadvisor.report.sheet import Sheet
from stopadvisor.report.sheets.files import (
    import_dataset_sheet,
    import_log_sheet,
    import_probes_sheet,
    import_replies_sheet,
)
from stopadvisor.report.words import plural
from stopadvisor.runs.imported import (
    ImportedDataset,
    ImportedLog,
    ImportedProbes,
    ImportedReplies,
    write_dataset,
    write_log,
    write_recording,
    write_replies,
)
from stopadvisor.runs.ladder import Rung
from stopadvisor.runs.recording import SUFFIX_TOKENS, read_recording
from stopadvisor.runs.replies import read_replies, read_reply_logs
from stopadvisor.workload.converters import BENCHMARKS, convert, load_rows
from stopadvisor.workload.inspect_log import read_inspect
from stopadvisor.workload.lm_eval_log import read_lm_eval
from stopadvisor.workload.logged import COLUMNS, LogContent, gather, read_csv
from stopadvisor.workload.questions import TASKS, default_split, parse_split
from stopadvisor.workload.traces import Markers

__all__ = ["command"]

_LOG_OPTIONS = ("task", "traces_only", "think_tags")
_RUN_OPTIONS = ("grader", "seed", "split")
_OPTIONS = {
    "inspect": _LOG_OPTIONS,
    "lm-eval": (*_RUN_OPTIONS, "ladder", "rungs", "task", "think_tags"),
    "csv": (*_LOG_OPTIONS, "columns"),
    "probes": (*_RUN_OPTIONS, "cap", "suffix_tokens", "model"),
    "replies": (*_RUN_OPTIONS, "ladder"),
    "dataset": ("questions", "copy", "seed"),
}
"""Options of each format; with `--rung` inspect has those of lm-eval."""

_Imported = tuple[ImportedLog | ImportedDataset | ImportedProbes | ImportedReplies, Sheet]


def _rung(text: str) -> tuple[str, Path]:
    name, _, log = text.partition("=")
    if not name or not log:
        raise ValueError("expected NAME=LOG, a rung of the ladder and its log")
    return name, Path(log)


def _columns(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",")]
    columns = {kind.strip(): column.strip() for kind, _, column in pairs}
    if len(columns) < len(pairs) or not all(columns.values()) or not columns.keys() <= {*COLUMNS}:
        known = ", ".join(COLUMNS)
        raise ValueError(f"expected KIND=COLUMN,... with each kind once, of {known}")
    return columns


@click.command(
    "import",
    cls=Command,
    reads="FILE: inspect: logs of inspect_ai, .eval or .json; lm-eval: samples of "
    "lm-evaluation-harness, JSONL, with --rung; csv: CSV with a header; probes: "
    "recorded forced answers, JSONL; replies: recorded replies of several rungs, JSONL; dataset: a "
    "name of " + ", ".join(BENCHMARKS) + ".",
    writes="A workload, JSONL, with the recorded traces in it; from probes and replies, a run "
    "directory.",
    examples=[
        "stopadvisor import inspect logs/2026-11-22_math.eval -o math.jsonl",
        "stopadvisor import csv mine.csv --map question=ask,gold=right -o mine.jsonl",
        "stopadvisor import dataset gsm8k -n 300 -o gsm8k.jsonl",
        "stopadvisor import dataset math500 --from MATH-500/test.jsonl -o math500.jsonl",
        "stopadvisor import probes recorded.jsonl -o runs/recorded --max-think 16384",
        "stopadvisor import replies replies.jsonl --ladder ladder.toml -o runs/ladder",
    ],
)
@click.argument("kind", metavar="FORMAT", type=click.Choice(list(_OPTIONS)))
@click.argument("sources", metavar="[FILE]...", type=PATH, nargs=-1)
@click.option("--out", "-o", type=PATH, required=True, help="Workload or run directory to make.")
@click.option(
    "--map",
    "columns",
    type=Parsed("kind=column,...", _columns),
    show_default="none: csv needs the question's",
    help=f"What each column of a table holds ({', '.join(COLUMNS)}).",
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
    help="Leave out questions whose thinking was not recorded, so that `probe --traces` accepts "
    "the file.",
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
    help="For probes: cap on thinking, in tokens, under which they were recorded.",
)
@click.option(
    "--suffix-tokens",
    type=click.IntRange(min=0),
    default=SUFFIX_TOKENS,
    help="For probes: tokens of closer and cue before each forced answer.",
)
@click.option(
    "--model",
    show_default="none: a policy is bound to no model",
    help="For probes: the recorded model; a policy is then bound to it.",
)
@click.option(
    "--ladder",
    metavar="LADDER.TOML",
    type=PATH,
    show_default="none: replies and --rung need one",
    help="For replies: the rungs in the order of climbing, the reference last, with their prices.",
)
@click.option(
    "--rung",
    "rungs",
    metavar="NAME=LOG",
    type=Parsed("name=log", _rung),
    multiple=True,
    help="For inspect and lm-eval, instead of FILE: the log of one rung of the ladder.  "
    "[repeatable]",
)
@grader_option(click.option)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    help="For probes and replies: seed of the split. For dataset: seed of the draw, and of "
    "GPQA's options.",
)
@click.option(
    "--split",
    type=Parsed("fit/cal/test", parse_split),
    show_default="40/60/0 up to 2,000 questions, 40/40/20 above",
    help="For probes and replies: shares of questions for each part; split once, here.",
)
@click.option(
    "--limit",
    "-n",
    "questions",
    type=COUNT,
    show_default="as many as the paper used",
    help="For dataset: how many to draw; a larger number keeps the questions of a smaller one.",
)
@click.option(
    "--from",
    "copy",
    metavar="FILE|FOLDER",
    type=PATH,
    show_default="the Hugging Face hub",
    help="For dataset: a copy in its own columns: JSON, JSONL, Parquet, CSV, or a hub's folder.",
)
@declare(*OUTPUT)
@click.pass_context
def command(ctx: click.Context, /, **params: Any) -> int:
    """Make a workload from a log or a public benchmark, or a run from recorded answers.

    A question that was asked several times becomes one line of the workload, with all its recorded
    traces: thinking and reply, and the prompt as it was sent. `probe WORKLOAD --traces WORKLOAD`
    then asks only for forced answers. Gold may be missing; the program's grades are not kept.

    FORMAT `dataset` draws a benchmark, with the splits and gold rules of the paper (extra
    `datasets`; GPQA needs a login at the hub).

    FORMAT `probes` makes a run instead. A line is a trace: id, trace_tokens, finish,
    natural_answer, natural_correct, natural_answer_tokens and checkpoints. Each checkpoint has its
    own budget (thinking tokens before it), answer, correct and probe_tokens, and where known
    mean_logprob, mean_entropy and markers. Labels may be left out where a line has gold, or
    everywhere: then a reply counts as right if it agrees with full thinking. With --grader no line
    has labels, and each has its question and gold.

    FORMAT `replies` makes a run of whole replies, one of each rung of LADDER.TOML. A line is a
    question: id, gold and rungs, each with name, answer, finished and completion_tokens, and where
    known correct, prompt_tokens, cached_tokens, mean_logprob and seconds. FORMAT `inspect` and
    `lm-eval` make the same from logs: a --rung for each, joined by the samples' ids, an epoch (a
    repeat) for each repeated reply. The samples of lm-eval hold no counts: the tokenizer of the
    rung's `model` counts tokens (extra `openai`).
    """
    kind = params["kind"]
    _check_options(ctx, kind, params)
    with progress_on(sys.stderr, quiet=params["quiet"]) as progress:
        make = _import_replies if params["rungs"] else _MAKERS.get(kind, _import_log)
        imported, sheet = make(params, progress)
    show(imported, sheet, json=params["json"])
    return 0


def _check_options(ctx: click.Context, kind: str, params: Mapping[str, Any]) -> None:
    """Refuse options of other formats, and missing ones of this format."""
    sources, names = params["sources"], " ".join(map(str, params["sources"]))
    by_rung = kind == "lm-eval" or (kind == "inspect" and bool(params["rungs"]))
    allowed = _OPTIONS["lm-eval" if by_rung else kind]
    others = {name for names in _OPTIONS.values() for name in names} - {*allowed}
    for option in ctx.command.params:
        if option.name in others and is_given(option.name):
            raise click.UsageError(f"{option.opts[0]} is not an option of format {kind}")
    if by_rung and (sources or not params["rungs"]):
        what = "FILE or --rung" if kind == "inspect" else "a --rung for each rung, no FILE"
        raise click.UsageError(f"format {kind} takes {what}, got {names or 'none'}")
    if not by_rung and not sources:
        raise click.UsageError(f"format {kind} needs a FILE, got none")
    if len({name for name, _ in params["rungs"]}) < len(params["rungs"]):
        raise click.UsageError("--rung: expected each rung once")
    if kind == "dataset":
        if names not in BENCHMARKS:
            known = ", ".join(BENCHMARKS)
            raise click.UsageError(f"format dataset takes one of {known}, got {names}")
        sources = [] if params["copy"] is None else [params["copy"]]
    elif kind == "csv" and "question" not in (params["columns"] or {}):
        raise click.UsageError("format csv needs --map question=COLUMN")
    elif kind in ("probes", "replies") and len(sources) > 1:
        raise click.UsageError(f"format {kind} takes one file, got {len(sources)}")
    elif (kind == "replies" or by_rung) and params["ladder"] is None:
        what = "--rung" if by_rung else "format replies"
        raise click.UsageError(f"{what} needs --ladder LADDER.TOML")
    if any(params["out"].resolve() == source.resolve() for source in sources):
        raise click.UsageError(f"--out {params['out']} is one of the files to read")


def _import_log(params: Mapping[str, Any], progress: Progress) -> _Imported:
    kind, sources, columns = params["kind"], params["sources"], params["columns"] or {}
    markers = _markers(params)
    log = read_csv(sources, markers, columns) if kind == "csv" else read_inspect(sources, markers)
    gathered = gather(log, task=params["task"], traces_only=params["traces_only"])
    imported = write_log(kind, sources, gathered, params["out"])
    remark_first(progress, "left out", gathered.left_out)
    remark_first(progress, "renamed", gathered.renamed)
    if gathered.n_traces and kind == "csv":
        progress.remark(
            f"{columns['question']!r} is asked unchanged: for recorded thinking it must be the "
            "prompt that was sent, with all its instructions"
        )
    if gathered.n_traces and gathered.n_untraced:
        progress.remark(
            f"without a recorded trace: {plural(gathered.n_untraced, 'question')}, which "
            "--traces-only leaves out, as `probe --traces` requires"
        )
    if without := gathered.without_thinking:
        progress.remark(
            f"{len(without)} replies hold no separable thinking, the first in {without[0]}"
        )
    return imported, import_log_sheet(imported)


def _markers(params: Mapping[str, Any]) -> Markers:
    return KNOWN_MARKERS if params["think_tags"] is None else (params["think_tags"],)


def _import_dataset(params: Mapping[str, Any], progress: Progress) -> _Imported:
    name, copy, seed = str(params["sources"][0]), params["copy"], params["seed"]
    wanted = params["questions"] or BENCHMARKS[name].size
    rows = load_rows(name, copy, quiet=params["quiet"])
    converted = convert(name, rows, wanted, seed=seed)
    imported = write_dataset(name, converted, params["out"], copy=copy, seed=seed)
    remark_first(progress, "left out", converted.left_out)
    if imported.n_questions < wanted:
        progress.remark(f"asked for {wanted} questions, the data set has {imported.n_questions}")
    return imported, import_dataset_sheet(imported)


def _import_probes(params: Mapping[str, Any], progress: Progress) -> _Imported:
    cap, suffix_tokens = params["cap"], params["suffix_tokens"]
    with open_graders(params["grader"]) as graders:
        recording = read_recording(
            params["sources"][0], graders.right, suffix_tokens=suffix_tokens, cap=cap
        )
        on_grades = graders.right.remarks()
    fractions = params["split"] or default_split(len(recording.records))
    imported = write_recording(
        params["out"],
        recording,
        cap=cap,
        suffix_tokens=suffix_tokens,
        model=params["model"],
        seed=params["seed"],
        fractions=fractions,
    )
    if cap is None:
        progress.remark(
            f"no --max-think: the longest trace, {recording.longest} tokens, counts as the cap on "
            "thinking, which is part of a policy"
        )
    if not any(record.prompt_tokens for record in recording.records):
        progress.remark("no prompt_tokens: costs leave the prompt out")
    if recording.positions_are_markers:
        progress.remark(
            "each question was probed at its own positions: they count as positions of markers"
        )
    if recording.entropy_source == "none":
        progress.remark("no log-probabilities: rules that read them are left out")
    for sentence in on_grades:
        progress.remark(sentence)
    return imported, import_probes_sheet(imported, params["grader"])


def _import_replies(params: Mapping[str, Any], progress: Progress) -> _Imported:
    rungs, logs = read_rungs(params["ladder"]), dict(params["rungs"])
    with open_graders(params["grader"]) as graders:
        if logs:
            read = partial(_log_of_rung, params["kind"], _markers(params))
            recorded = read_reply_logs(logs, rungs, graders.right, read, params["task"])
        else:
            recorded = read_replies(params["sources"][0], rungs, graders.right)
        on_grades = graders.right.remarks()
    fractions, seed = params["split"] or default_split(len(recorded.records)), params["seed"]
    imported = write_replies(params["out"], recorded, rungs, seed=seed, fractions=fractions)
    for sentence in on_grades:
        progress.remark(sentence)
    return imported, import_replies_sheet(imported)


def _log_of_rung(kind: str, markers: Markers, rung: Rung, file: Path) -> LogContent:
    if kind == "inspect":
        return read_inspect([file], markers)
    from stopadvisor.engines.model_files import token_counter

    if rung.model is None:
        what = "model, whose tokenizer counts tokens, as lm-eval's samples do not"
        raise WorkloadError(f"rung {rung.name!r}: expected {what}, got none")
    return read_lm_eval(file, markers, token_counter(rung.model), limit=rung.max_tokens)


_MAKERS = {"probes": _import_probes, "replies": _import_replies, "dataset": _import_dataset}
"""By format; all other formats are logs."""
