"""`stopadvisor report`: write the results of a run as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from stopadvisor.cli.parts.command import Command
from stopadvisor.cli.parts.declare import FILE, PATH, Printed, printed
from stopadvisor.ground.progress import Progress
from stopadvisor.report.html.page import write_report
from stopadvisor.report.sheets.files import report_sheet
from stopadvisor.runs.sources import newest_source, open_source

__all__ = ["command"]


@click.command(
    "report",
    cls=Command,
    reads="A run directory, or a raw.npz archive, as `assess` and `calibrate` left it: "
    "assessment.json, calibration.json and their figures; computes nothing.",
    writes="report.html: --out, else in the run directory.",
    examples=[
        "stopadvisor report",
        "stopadvisor report runs/my-Qwen3-8B-1a2b3c4d --out for-the-team.html",
    ],
)
@click.argument("path", metavar="[RUN|RAW.NPZ]", required=False, type=PATH)
@click.option("--out", type=FILE, show_default="report.html in RUN", help="The file.")
@printed
def command(progress: Progress, path: Path | None, out: Path | None) -> Printed:
    """Write the results of RUN as one page with pictures and tables.

    Without RUN: the run assessed last under runs/.  The page is one file that loads nothing else.
    `assess` writes it too, and `calibrate` updates it.  Needs the extra `report`.
    """
    source = newest_source() if path is None else open_source(path)
    written = write_report(source.folder, out)
    if path is None:
        progress.remark(f"reporting on {source.folder}, the run assessed last")
    progress.notes(written.remarks)
    return Printed(written, report_sheet(written))
