"""`stopadvisor workload`: a public benchmark as a workload file, as the paper used it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import click

from stopadvisor.cli.options import COUNT, OUTPUT, PATH, OutputOptions, declare, emit, take
from stopadvisor.cli.page import Command
from stopadvisor.cli.progress import progress_on, remark_first
from stopadvisor.report.documents.written import workload_document
from stopadvisor.report.text.written import show_workload
from stopadvisor.runs.storage import encode, replace_file
from stopadvisor.workload.converters import BENCHMARKS, convert, load_rows
from stopadvisor.workload.questions import read_workload

__all__ = ["WorkloadOptions", "command", "run"]


@dataclass(frozen=True)
class WorkloadOptions:
    """Which benchmark, how much of it, and where to put it."""

    name: str
    out: Path
    questions: int | None = None
    """None: as many as the paper used."""
    source: Path | None = None
    """None: the Hugging Face hub."""
    seed: int = 0
    output: OutputOptions = field(default_factory=OutputOptions)


@click.command(
    "workload",
    cls=Command,
    reads="The data set: from the Hugging Face hub, or a copy of it (--from).",
    writes="The workload, JSONL: --out.",
    examples=[
        "stopadvisor workload gsm8k -n 300 -o gsm8k.jsonl",
        "stopadvisor workload math500 --from MATH-500/test.jsonl -o math500.jsonl",
    ],
)
@click.argument("name", type=click.Choice(list(BENCHMARKS)))
@click.option(
    "--questions",
    "-n",
    type=COUNT,
    show_default="as many as the paper used",
    help="How many to draw; a larger number keeps all of a smaller one.",
)
@click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="JSONL file to write.",
)
@click.option(
    "--from",
    "source",
    metavar="FILE|FOLDER",
    type=PATH,
    show_default="the Hugging Face hub",
    help="A copy in the data set's own columns: JSON, JSONL, Parquet, CSV, or a hub's folder.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=WorkloadOptions.seed,
    help="Seed of the drawing, and of the order of GPQA's options.",
)
@declare(*OUTPUT)
def command(**params: Any) -> int:
    """Write a public benchmark as a workload, with the splits and gold rules of the paper.

    Needs the extra `datasets`; GPQA asks for a login at the hub.
    """
    output = take(OutputOptions, params)
    return run(WorkloadOptions(output=output, **params), sys.stdout, sys.stderr)


def run(options: WorkloadOptions, out: TextIO, err: TextIO) -> int:
    """Read, draw, write, and read back what was written."""
    benchmark = BENCHMARKS[options.name]
    wanted = options.questions or benchmark.size
    rows = load_rows(options.name, options.source, quiet=options.output.quiet)
    found = convert(options.name, rows, wanted, seed=options.seed)
    lines = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in found.lines)
    replace_file(options.out, encode(lines))
    count = len(read_workload(options.out).questions)
    with progress_on(err, quiet=options.output.quiet) as progress:
        remark_first(progress, "left out", found.left_out)
        if count < wanted:
            progress.remark(f"{wanted} questions were wanted, the data set has {count}")
    source = benchmark.repository if options.source is None else str(options.source)
    document = workload_document(
        options.name, benchmark, found, source, count, options.seed, options.out
    )
    emit(document, options.output, out, show_workload, indent=None)
    return 0
