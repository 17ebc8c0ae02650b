"""Which questions of a source a study may show, and what the source is called in its tables.

Outcomes of calibration questions stay closed until the ledger has a look at them; until then a
study sees fit questions alone.  Reads the ledger, writes to it where a look is asked for, and knows
no study.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stopadvisor.probes.table import ProbeTable
from stopadvisor.runs.ledger import looks_at, open_outcomes
from stopadvisor.runs.sources import Source
from stopadvisor.runs.storage import lock_directory
from stopadvisor.workload.questions import PARTS

__all__ = [
    "View",
    "basis_remarks",
    "is_opened",
    "labels",
    "open_calibration",
    "paper_view",
    "view",
]

_FIT = PARTS.index("fit")


@dataclass(frozen=True)
class View:
    """What a study may show of one source."""

    label: str
    """Name of the source in tables."""
    table: ProbeTable
    """One trace per question where asked for, all of them otherwise."""
    basis: Literal["all", "fit"]
    """All questions, or the fit part alone because calibration has not been opened."""


def is_opened(source: Source) -> bool:
    """Whether outcomes of all calibration questions have been looked at already.

    Archives are published with their outcomes.

    Raises
    ------
    ProbeError
        The ledger is damaged.
    """
    if source.is_archive:
        return True
    keys = set(source.part("calibration").keys)
    seen = {key for look in looks_at(source.folder, tuple(keys)) for key in look.questions}
    return seen >= keys


def open_calibration(source: Source, *, study: str, delta: float) -> None:
    """Record a look at the calibration questions, because a study is about to show them.

    Parameters
    ----------
    source : Source
    study : str
        Name of the study that asks.
    delta : float
        Error probability that the look takes from later certificates.

    Raises
    ------
    CalibrationError
        The planned looks are used up, or no confidence is left.
    """
    if is_opened(source):
        return
    keys = source.part("calibration").keys
    with lock_directory(source.folder):
        request = {"study": study, "data": source.fingerprint()}
        open_outcomes(source.folder, keys, request, delta=delta)


def view(source: Source, label: str | None = None, *, all_samples: bool = False) -> View:
    """What may be shown of a source.

    Parameters
    ----------
    source : Source
    label : str, optional
        The folder's name where none is given.
    all_samples : bool
        Every trace, instead of the first of each question: those are not independent.
    """
    opened = is_opened(source)
    rows = np.ones(source.table.n_questions, bool) if opened else source.parts == _FIT
    if not all_samples:
        rows = rows & (source.table.samples == 0)
    table = source.table.take(rows)
    return View(label or source.folder.name, table, "all" if opened else "fit")


def paper_view(source: Source, label: str | None = None) -> View:
    """What may be shown of a source, under the paper's ``last-checkpoint`` reference."""
    found = view(source, label)
    return View(found.label, found.table.with_reference("last-checkpoint"), found.basis)


def labels(sources: Sequence[Source]) -> list[str]:
    """Names of sources: the folders', or their whole paths where two folders share a name."""
    names = [source.folder.name for source in sources]
    if len(set(names)) == len(names):
        return names
    return [str(source.folder) for source in sources]


def basis_remarks(views: Sequence[View]) -> tuple[str, ...]:
    """One remark that names the sources of which only fit questions are shown; none otherwise."""
    closed = [v.label for v in views if v.basis == "fit"]
    if not closed:
        return ()
    return (
        f"fit questions alone: nobody has looked at the calibration questions of "
        f"{', '.join(closed)} yet, and until `stopadvisor calibrate` has run, or "
        "--open-calibration is said, they stay closed",
    )
