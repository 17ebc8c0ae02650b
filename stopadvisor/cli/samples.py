"""`stopadvisor samples`: write the bundled model and workloads."""

from __future__ import annotations

from pathlib import Path

import click

from stopadvisor.cli.parts.command import Command
from stopadvisor.cli.parts.declare import PATH, Printed, printed
from stopadvisor.ground.progress import Progress
from stopadvisor.report.sheets.files import samples_sheet
from stopadvisor.runs.samples import MODEL, WORKLOADS, write_samples

__all__ = ["command"]


@click.command(
    "samples",
    cls=Command,
    writes=f"Into DIR: the model, {MODEL}/, and the workloads {', '.join(WORKLOADS)}.",
    examples=["stopadvisor samples", "stopadvisor samples tried --json"],
)
@click.argument("folder", metavar="[DIR]", type=PATH, default="samples")
@printed
def command(_: Progress, folder: Path) -> Printed:
    """Write the bundled model and workloads to DIR, by default `samples`.

    Nothing is overwritten: if DIR already has one of them, nothing is written at all.
    """
    samples = write_samples(folder)
    return Printed(samples, samples_sheet(samples))
