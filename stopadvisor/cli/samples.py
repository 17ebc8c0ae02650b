"""`stopadvisor samples`: the bundled model and workloads as files, to try everything with.

They lie in the installed package, or beside it in a checkout; what is in them is not looked at.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import click

import stopadvisor
from stopadvisor.cli.options import OUTPUT, PATH, OutputOptions, declare, emit, take
from stopadvisor.cli.page import Command
from stopadvisor.errors import OutputError
from stopadvisor.report.documents.program import samples_document
from stopadvisor.report.text.written import show_samples
from stopadvisor.runs.storage import check_writable

__all__ = ["MODEL", "SAMPLES", "WORKLOADS", "SamplesOptions", "command", "run"]

MODEL = "tiny-reasoner"
WORKLOADS = ("arithmetic.jsonl", "choice.jsonl", "hard.jsonl")
SAMPLES = (MODEL, *WORKLOADS)
"""What is written; `pyproject.toml` puts the same into the wheel."""


@dataclass(frozen=True)
class SamplesOptions:
    """Where to put the files."""

    folder: Path = Path("samples")
    output: OutputOptions = field(default_factory=OutputOptions)


@click.command(
    "samples",
    cls=Command,
    writes=f"Into DIR: the model, {MODEL}/, and the workloads {', '.join(WORKLOADS)}.",
    examples=["stopadvisor samples", "stopadvisor samples tried --json"],
)
@click.argument("folder", metavar="[DIR]", type=PATH, default=SamplesOptions.folder)
@declare(*OUTPUT)
def command(folder: Path, **params: Any) -> int:
    """Write the bundled model and workloads to DIR, `samples` where none is named.

    Nothing is written over: where one of them is in DIR already, nothing is written at all.
    """
    return run(SamplesOptions(folder, take(OutputOptions, params)), sys.stdout, sys.stderr)


def run(options: SamplesOptions, out: TextIO, err: TextIO) -> int:
    """Copy them beside their place first, so that a full disk leaves nothing half-written."""
    folder, source = options.folder, _bundled()
    for name in SAMPLES:
        if os.path.lexists(folder / name):
            raise OutputError(
                f"{folder / name} is there already, and nothing is written over; name another DIR"
            )
    check_writable(folder)
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryDirectory(prefix=".samples.", dir=folder) as beside:
                for name in SAMPLES:
                    _copy(source / name, Path(beside, name))
                for name in SAMPLES:
                    Path(beside, name).rename(folder / name)
        except BaseException:
            if is_new and not any(folder.iterdir()):
                folder.rmdir()
            raise
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}") from error
    emit(samples_document(folder, MODEL, WORKLOADS), options.output, out, show_samples)
    return 0


def _bundled() -> Path:
    """Folder of the files: inside an installed package, or beside the package of a checkout."""
    package = Path(stopadvisor.__file__).parent
    for found in (package / "_samples", package.parent / "samples"):
        if (found / MODEL).is_dir():
            return found
    raise OutputError(f"{package}: the samples were not installed with it; install it anew")


def _copy(source: Path, to: Path) -> None:
    """Copy a file or a folder without its modes: what is installed may be read-only."""
    if source.is_dir():
        to.mkdir()
        for file in source.iterdir():
            _copy(file, to / file.name)
    else:
        shutil.copyfile(source, to)
