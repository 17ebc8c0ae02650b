"""Which outcomes of a source may be opened, and what tables call the source.

Outcomes of calibration questions stay closed until the log holds a look at them; until then a study
sees fit questions alone.  Reads the log and never writes to it; knows no study.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stopadvisor.ground.errors import CalibrationError
from stopadvisor.probes.outcomes import (
    CalibrationQuestions,
    GradedTable,
    OpenQuestions,
    SealedQuestions,
)
from stopadvisor.runs.directory import digest_of
from stopadvisor.runs.look_log import Look, read_log
from stopadvisor.runs.sources import Source
from stopadvisor.workload.questions import PARTS

__all__ = [
    "View",
    "basis_remarks",
    "closed_questions",
    "hand_out",
    "is_unsealed",
    "labels",
    "open_all",
    "open_test",
    "unsealed_calibration",
    "unsealed_rows",
    "unshown_questions",
    "view",
]

_FIT, _CALIBRATION = PARTS.index("fit"), PARTS.index("calibration")


@dataclass(frozen=True)
class View:
    """What a study may show of one source."""

    label: str
    """Name of the source in tables."""
    table: OpenQuestions
    """The first trace of each question, or all of them."""
    basis: Literal["all", "fit"]
    """All questions, or the fit part alone while calibration questions are closed."""


def is_unsealed(source: Source) -> bool:
    """Whether every calibration question has been looked at; archives are published open."""
    return not closed_questions(source)


def closed_questions(source: Source) -> set[str]:
    """Keys of the calibration questions whose outcomes nobody has seen; none of an archive.

    A look that failed, and showed nothing else, opens none.
    """
    return set() if source.is_archive else unshown_questions(source)


def unshown_questions(source: Source) -> set[str]:
    """Keys of the calibration questions whose outcomes no recorded look has shown."""
    log = read_log(source.folder)
    shown = log.shown.union(*(look.questions for look in log.looks if look.opened))
    return {key for key in source.part("calibration").keys if digest_of(key) not in shown}


def hand_out(sealed: SealedQuestions, look: Look) -> CalibrationQuestions:
    """The questions of a look with their outcomes.

    Raises
    ------
    CalibrationError
        The look is not about some of them.
    """
    opened = set(look.questions)
    closed = [key for key in sealed.keys if digest_of(key) not in opened]
    if closed:
        raise CalibrationError(
            f"look {look.number} is not about {len(closed)} of these questions, e.g. "
            f"{min(closed)!r}: their outcomes stay closed"
        )
    return sealed.unseal().as_calibration()


def unsealed_rows(source: Source, rows: NDArray[Any]) -> OpenQuestions:
    """Some questions with their outcomes, once every calibration question among them was looked at.

    Raises
    ------
    CalibrationError
        Some of these calibration questions are still closed.
    """
    table = source.table.take(rows)
    if closed_questions(source) & set(table.keys):
        raise CalibrationError(
            f"{source.folder}: nobody has seen outcomes of its calibration questions, so that they "
            "stay closed; a certificate by `stopadvisor calibrate` opens them"
        )
    return table.unseal()


def open_all(source: Source) -> OpenQuestions:
    """All questions with their outcomes; raises as `unsealed_rows`."""
    return unsealed_rows(source, np.arange(source.table.n_questions))


def unsealed_calibration(source: Source) -> CalibrationQuestions:
    """Calibration questions that are open already; raises as `unsealed_rows`."""
    return unsealed_rows(source, source.parts == _CALIBRATION).as_calibration()


def open_test(source: Source) -> GradedTable:
    """Test questions with their outcomes, to measure a rule that was settled without them."""
    test = source.part("test")
    return GradedTable.of(test, test.unseal().outcomes)


def view(source: Source, label: str | None = None, *, all_samples: bool = False) -> View:
    """What may be shown of a source.

    `label` defaults to the folder's name.  With `all_samples` every trace is shown instead of the
    first of each question; traces of one question are not independent.
    """
    unsealed = is_unsealed(source)
    rows = np.ones(source.table.n_questions, bool) if unsealed else source.parts == _FIT
    if not all_samples:
        rows = rows & (source.table.samples == 0)
    table = source.table.take(rows).unseal()
    return View(label or source.folder.name, table, "all" if unsealed else "fit")


def labels(sources: Sequence[Source]) -> list[str]:
    """Names of sources: the folders', or their whole paths where two folders share a name."""
    names = [source.folder.name for source in sources]
    if len(set(names)) == len(names):
        return names
    return [str(source.folder) for source in sources]


def basis_remarks(views: Sequence[View]) -> tuple[str, ...]:
    """A remark that names the sources of which only fit questions are shown, if there are any."""
    closed = [v.label for v in views if v.basis == "fit"]
    if not closed:
        return ()
    return (
        f"fit questions alone: nobody has seen outcomes of the calibration questions of "
        f"{', '.join(closed)} yet, and until `stopadvisor calibrate` certifies, or "
        "--open-calibration is said, they stay closed",
    )
