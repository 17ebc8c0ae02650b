"""`stopadvisor import`: forced answers that somebody has recorded, as a run; no model is asked."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import click

from stopadvisor.cli.options import COUNT, OUTPUT, PATH, OutputOptions, Parsed, declare, emit, take
from stopadvisor.cli.page import Command
from stopadvisor.cli.progress import progress_on
from stopadvisor.report.text.written import show_import
from stopadvisor.runs.recording import SUFFIX_TOKENS, Recording
from stopadvisor.workload.questions import default_split, parse_split

__all__ = ["ImportOptions", "command", "run"]

FORMATS = ("probes",)


@dataclass(frozen=True)
class ImportOptions:
    """What to read, where to put it, and what is known of how it was recorded."""

    kind: str
    """One of `FORMATS`."""
    source: Path
    out: Path
    cap: int | None = None
    """None: the longest trace."""
    suffix_tokens: int = SUFFIX_TOKENS
    model: str | None = None
    seed: int = 0
    split: tuple[float, float, float] | None = None
    """None: `default_split` of what is read."""
    output: OutputOptions = field(default_factory=OutputOptions)


@click.command(
    "import",
    cls=Command,
    reads="Recorded forced answers, JSONL: one trace a line.",
    writes="A run directory: --out.",
    examples=[
        "stopadvisor import probes recorded.jsonl -o runs/recorded --cap 16384",
    ],
)
@click.argument("kind", metavar="FORMAT", type=click.Choice(FORMATS))
@click.argument("source", metavar="FILE", type=PATH)
@click.option("--out", "-o", type=PATH, required=True, help="Run directory to make.")
@click.option(
    "--cap",
    type=COUNT,
    show_default="the longest trace",
    help="Cap on thinking, in tokens, under which the traces were recorded.",
)
@click.option(
    "--suffix-tokens",
    type=click.IntRange(min=0),
    default=SUFFIX_TOKENS,
    help="Tokens of the closer and the cue that stood in front of each forced answer.",
)
@click.option(
    "--model-name",
    "model",
    show_default="none: a policy is bound to no model",
    help="Model that was recorded; a policy is then bound to it.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the split.")
@click.option(
    "--split",
    type=Parsed("fit/cal/test", parse_split),
    show_default="40/60/0 up to 2,000 questions, 40/40/20 above",
    help="Shares of questions for each part; split once, here.",
)
@declare(*OUTPUT)
def command(**params: Any) -> int:
    """Make a run of forced answers that were recorded elsewhere; FORMAT is `probes`.

    A line of the file is a trace: id, trace_tokens, finish, natural_answer, natural_correct,
    natural_answer_tokens and checkpoints. Each checkpoint has its own budget (thinking tokens
    before it), answer, correct and probe_tokens, and where known mean_logprob, mean_entropy and
    markers. Where a line has gold, labels may be left out. A line may have neither: then its
    replies count by whether they agree with what its full thinking answers.
    """
    output = take(OutputOptions, params)
    return run(ImportOptions(output=output, **params), sys.stdout, sys.stderr)


def run(options: ImportOptions, out: TextIO, err: TextIO) -> int:
    """Read, label, write, and say what was written."""
    from stopadvisor.answers.grading import Grader
    from stopadvisor.report.documents.import_probes import import_document
    from stopadvisor.runs.imported import write_recording
    from stopadvisor.runs.recording import read_recording

    with Grader() as grader:
        recording = read_recording(
            options.source, grader, suffix_tokens=options.suffix_tokens, cap=options.cap
        )
    written = write_recording(
        options.out,
        recording,
        cap=options.cap,
        model=options.model,
        seed=options.seed,
        fractions=options.split or default_split(len(recording.records)),
    )
    with progress_on(err, quiet=options.output.quiet) as progress:
        for sentence in _remarks(recording, options):
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
