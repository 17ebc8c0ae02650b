"""`stopadvisor report`: a run's results as one HTML page, from its files and without the model."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import click

from stopadvisor.cli.options import OUTPUT, PATH, OutputOptions, declare, emit, take
from stopadvisor.cli.page import Command
from stopadvisor.cli.progress import progress_on
from stopadvisor.errors import OutputError
from stopadvisor.report.documents.written import report_document
from stopadvisor.report.rewrite import rewrite_report
from stopadvisor.report.text.written import show_report_file
from stopadvisor.runs.sources import newest_source, open_source

__all__ = ["ReportOptions", "command", "run"]


@dataclass(frozen=True)
class ReportOptions:
    """What to report on, and where to."""

    path: Path | None = None
    """Run directory or archive; None for the one assessed last."""
    out: Path | None = None
    """The file; None for ``report.html`` in the run."""
    output: OutputOptions = field(default_factory=OutputOptions)


@click.command(
    "report",
    cls=Command,
    reads="A run directory, or a raw.npz archive that was assessed: assessment.json, "
    "calibration.json where there is one, and the probes; never the model.",
    writes="report.html: --out, else in the run directory.",
    examples=[
        "stopadvisor report",
        "stopadvisor report runs/my-Qwen3-8B-1a2b3c4d --out for-the-team.html",
    ],
)
@click.argument("path", metavar="[RUN|RAW.NPZ]", required=False, type=PATH)
@click.option("--out", type=PATH, show_default="report.html in RUN", help="The file.")
@declare(*OUTPUT)
def command(path: Path | None, out: Path | None, **params: Any) -> int:
    """Write the results of RUN as one page that opens anywhere, with pictures and tables.

    Without RUN: the run assessed last under runs/.  The page is one file that loads nothing from
    anywhere.  `assess` writes it too, and `calibrate` writes it again where it is.  Needs the extra
    `report`.
    """
    return run(ReportOptions(path, out, take(OutputOptions, params)), sys.stdout, sys.stderr)


def run(options: ReportOptions, out: TextIO, err: TextIO) -> int:
    """Write the page and say where it is."""
    if options.out is not None and options.out.is_dir():
        raise OutputError(f"cannot write the report to {options.out}: it is a folder")
    source = newest_source() if options.path is None else open_source(options.path)
    written = rewrite_report(source, options.out)
    with progress_on(err, quiet=options.output.quiet) as progress:
        if options.path is None:
            progress.remark(f"reporting on {source.folder}, the run assessed last")
        for remark in written.data.remarks:
            progress.remark(f"note: {remark}")
    data = written.data
    result = report_document(
        source.folder, written.path, written.size, data.document, data.calibration, data.remarks
    )
    emit(result, options.output, out, show_report_file)
    return 0
