"""Copy the bundled model and workloads into a folder, from the installed package or a checkout."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from stopadvisor.ground.errors import OutputError
from stopadvisor.runs.storage import check_writable

__all__ = ["MODEL", "SAMPLES", "WORKLOADS", "Samples", "write_samples"]

MODEL = "tiny-reasoner"
WORKLOADS = ("arithmetic.jsonl", "choice.jsonl", "hard.jsonl")
SAMPLES = (MODEL, *WORKLOADS)
"""The names to copy; `pyproject.toml` puts the same ones into the wheel."""


@dataclass(frozen=True)
class Samples:
    """`samples --json`."""

    out: Path
    """The folder that was written."""
    model: Path
    """The model's folder in it."""
    workloads: tuple[Path, ...]
    """The workload files in it."""


def write_samples(folder: Path) -> Samples:
    """Copy the samples into `folder`, through a temporary folder so that none is half-written.

    Raises
    ------
    OutputError
        One of them already exists, the folder cannot be written, or none is installed.
    """
    source = _bundled()
    for name in SAMPLES:
        if os.path.lexists(folder / name):
            raise OutputError(
                f"{folder / name} already exists, and nothing is overwritten; name another DIR"
            )
    check_writable(folder)
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryDirectory(prefix=".samples.", dir=folder) as temporary:
                for name in SAMPLES:
                    _copy(source / name, Path(temporary, name))
                for name in SAMPLES:
                    Path(temporary, name).rename(folder / name)
        except BaseException:
            if is_new and not any(folder.iterdir()):
                folder.rmdir()
            raise
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}") from error
    return Samples(folder, folder / MODEL, tuple(folder / name for name in WORKLOADS))


def _bundled() -> Path:
    """Folder of the samples: inside the installed package, or next to the package in a checkout."""
    package = Path(__file__).parent.parent
    for folder in (package / "_samples", package.parent / "samples"):
        if (folder / MODEL).is_dir():
            return folder
    raise OutputError(f"{package}: installed without the samples; install it again")


def _copy(source: Path, to: Path) -> None:
    """Copy a file or folder without its mode: installed files may be read-only."""
    if source.is_dir():
        to.mkdir()
        for file in source.iterdir():
            _copy(file, to / file.name)
    else:
        shutil.copyfile(source, to)
