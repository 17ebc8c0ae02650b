"""`stopadvisor report`: a run's results as one HTML page, from its files and without the model.

Assesses again with the recorded settings, since pictures need more than the document holds, and
refuses where the two disagree.  Opens nothing: calibration outcomes are on the page only where
`calibrate` has shown them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import click

from stopadvisor.assessment.assess import FitAssessment, assess
from stopadvisor.assessment.settings import SettingsOverrides
from stopadvisor.cli.options import OUTPUT, PATH, OutputOptions, declare, emit, take
from stopadvisor.cli.page import Command
from stopadvisor.cli.progress import progress_on
from stopadvisor.errors import OutputError, ProbeError, StopAdvisorError
from stopadvisor.paper.assess import PaperAssessment, assess_paper
from stopadvisor.report.documents.assess import assessment_document
from stopadvisor.report.documents.written import report_document
from stopadvisor.report.figures.load import agrees
from stopadvisor.report.html.page import WrittenPage, write_report
from stopadvisor.report.text.written import show_report_file
from stopadvisor.report.words import shell_quote
from stopadvisor.runs.access import is_opened
from stopadvisor.runs.sources import (
    ASSESSMENT,
    REPORT,
    Source,
    newest_source,
    open_source,
    read_assessment,
)

__all__ = ["ReportOptions", "command", "rewritten_report", "run"]

_CHECKED = ("split", "profile", "matched_risk", "serving")
"""Parts of the assessment that have to come out again."""


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
    document = _assessed(source)
    written = _write(source, document, options.out)
    with progress_on(err, quiet=options.output.quiet) as progress:
        if options.path is None:
            progress.remark(f"reporting on {source.folder}, the run assessed last")
        for remark in written.data.remarks:
            progress.remark(f"note: {remark}")
    data = written.data
    result = report_document(
        source.folder, written.path, written.size, document, data.calibration, data.remarks
    )
    emit(result, options.output, out, show_report_file)
    return 0


def rewritten_report(
    folder: Path, open_run: Callable[[Path], Source], assessment: FitAssessment | None = None
) -> list[str]:
    """Write a run's page again, if it has one, after what it shows has changed."""
    page = folder / REPORT
    if not page.exists():
        return []
    try:
        source = open_run(folder)
        document = _assessed(source)
        settings = SettingsOverrides().settings(document)
        fits = assessment is not None and assessment.choice.settings == settings
        _write(source, document, None, assessment if fits else None)
    except StopAdvisorError as error:
        return [
            f"{page} is from before, and could not be written again: {error}; "
            f"`stopadvisor report {shell_quote(folder)}` does so later"
        ]
    return [f"wrote {page} again"]


def _write(
    source: Source,
    document: dict[str, Any],
    out: Path | None,
    assessment: FitAssessment | PaperAssessment | None = None,
) -> WrittenPage:
    assessment = assessment or _assess_again(source, document)
    fresh = json.loads(json.dumps(assessment_document(assessment)))
    parts = {name: fresh[name] for name in _CHECKED}
    if not agrees(document, parts):
        raise ProbeError(
            f"{source.folder / ASSESSMENT}: the probes now give other figures than it holds; run "
            f"`stopadvisor assess {shell_quote(source.folder)}` again"
        )
    return write_report(assessment, document, out)


def _assessed(source: Source) -> dict[str, Any]:
    document = read_assessment(source.folder)
    if document is None:
        raise ProbeError(
            f"{source.folder}: not assessed yet: run `stopadvisor assess "
            f"{shell_quote(source.folder)}` first"
        )
    return document


def _assess_again(source: Source, document: Mapping[str, Any]) -> FitAssessment | PaperAssessment:
    settings = SettingsOverrides().settings(document)
    if document["protocol"] == "deploy":
        return assess(source, settings)
    if not is_opened(source):
        raise ProbeError(
            f"{source.folder}: the paper's protocol shows outcomes of calibration questions that "
            "nobody has seen; run "
            f"`stopadvisor assess {shell_quote(source.folder)}` for a report on the others"
        )
    return assess_paper(
        source, alpha=settings.alpha, delta=settings.delta, serving=settings.serving
    )
