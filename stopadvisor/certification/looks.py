"""Looks at calibration outcomes: plan one, enter it in the ledger, then open the questions.

Whatever shows outcomes of calibration questions comes through here: certificates with `plan_look`
and `take`, all else with `open_rows`, `open_calibration` and `open_for_paper`, and whoever shows a
calibration again with `questions_of`.  Knows no rule and no bound, and computes nothing from an
outcome.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stopadvisor._version import __version__
from stopadvisor.assessment.choice import Settings
from stopadvisor.errors import CalibrationError
from stopadvisor.probes.outcomes import CalibrationQuestions, OpenQuestions, SealedQuestions
from stopadvisor.runs.access import closed_questions, opened_rows
from stopadvisor.runs.ledger import Look, LookRequest, hand_out, looks_at, read_ledger, take_looks
from stopadvisor.runs.sources import Part, Source, looks_elsewhere
from stopadvisor.runs.storage import lock_directory
from stopadvisor.workload.questions import PARTS

__all__ = [
    "PlannedLook",
    "TakenLook",
    "open_calibration",
    "open_for_paper",
    "open_rows",
    "plan_look",
    "questions_of",
    "take",
    "without_used",
]

_CALIBRATION = PARTS.index("calibration")


# --- Looks of certificates ------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedLook:
    """A look that is settled, but not yet in the ledger."""

    source: Source
    questions: SealedQuestions
    request: LookRequest
    n_earlier: int
    """Looks that were taken at these questions before."""

    @property
    def test_delta(self) -> float:
        """Error probability that this look may use up: planned looks share delta."""
        return self.request.delta / (self.request.planned or 1)


@dataclass(frozen=True)
class TakenLook:
    """A look that stands in the ledger, and what it opened."""

    look: Look
    questions: CalibrationQuestions
    remarks: tuple[str, ...]
    """What looks before this one mean for its certificate."""


def plan_look(
    source: Source,
    questions: SealedQuestions,
    asked: Mapping[str, Any],
    *,
    delta: float,
    looks: int | None,
) -> PlannedLook:
    """Settle a look at these calibration questions; opens and records nothing.

    Parameters
    ----------
    source : Source
        With exactly the questions that may be used.
    questions : SealedQuestions
        What will be looked at.
    asked : mapping
        All that may change the outcome, as JSON values; data and version are added here.
    delta : float
        Of all planned looks together.
    looks : int, optional
        How many are planned; None for as many as the first look at these questions declared.

    Raises
    ------
    ProbeError
        A ledger is damaged.
    """
    earlier = looks_at(source.folder, questions.keys)
    planned = looks or (earlier[0].planned if earlier else None)
    request = {**asked, "data": source.fingerprint(), "version": __version__}
    elsewhere = looks_elsewhere(source, questions.keys)
    asks = LookRequest(questions.keys, request, delta, planned, elsewhere)
    return PlannedLook(source, questions, asks, len(earlier))


def take(*planned: PlannedLook) -> list[TakenLook]:
    """Enter looks in the ledger of their run, all or none, and open their questions.

    Whoever calls holds the run's lock.

    Raises
    ------
    CalibrationError
        As `runs.ledger.take_looks`.
    """
    looks = take_looks(planned[0].source.folder, [plan.request for plan in planned])
    return [
        TakenLook(look, hand_out(plan.questions, look), _remarks(look, plan.n_earlier))
        for plan, look in zip(planned, looks, strict=True)
    ]


def _remarks(look: Look, n_earlier: int) -> tuple[str, ...]:
    found = []
    if n_earlier:
        found.append(
            f"these calibration questions were looked at before ({n_earlier} recorded); every "
            "further look leaves a certificate less confidence"
        )
    if look.elsewhere:
        found.append(
            f"{look.elsewhere} further look(s) are on record, at other questions of this run or at "
            "these questions in runs beside it: each certificate holds by itself, but the best of "
            "several tries does not"
        )
    return tuple(found)


def without_used(source: Source, names: Sequence[Part]) -> Source:
    """The source without the questions of these parts that a look has used, or their groups.

    Raises
    ------
    CalibrationError
        Nothing is left.
    """
    table = source.table
    used = {key for look in read_ledger(source.folder) for key in look.questions}
    groups = {g for g, k in zip(table.groups, table.keys, strict=True) if k in used}
    among = np.isin(source.parts, [PARTS.index(name) for name in names])
    spent = np.array([g in groups for g in table.groups]) & among
    left = int(among.sum() - spent.sum())
    if used and not left:
        raise CalibrationError(
            f"--fresh: all {int(spent.sum())} calibration questions were looked at already; add "
            "labelled questions and probe them into the same run"
        )
    return replace(source, table=table.take(~spent), parts=source.parts[~spent])


def questions_of(source: Source, calibration: Mapping[str, Any]) -> Iterator[CalibrationQuestions]:
    """What each look that may be a calibration's has opened, the last look first.

    Parameters
    ----------
    calibration : mapping
        A ``calibration.json``.  It numbers its look, but ``--fresh`` starts to count again.

    Raises
    ------
    ProbeError
        The ledger is damaged.
    """
    wanted = (calibration["look"]["number"], calibration["delta"], calibration["alpha"])
    for look in reversed(read_ledger(source.folder)):
        if (look.number, look.delta, look.request.get("alpha")) == wanted:
            keys = set(look.questions)
            rows = np.array([key in keys for key in source.table.keys])
            yield hand_out(source.table.take(rows), look)


# --- Looks that certify nothing -------------------------------------------------------------------


def open_rows(
    source: Source, rows: NDArray[Any], asked: Mapping[str, Any], *, delta: float
) -> tuple[OpenQuestions, int]:
    """Open some questions, with a look at the calibration questions among them.

    Parameters
    ----------
    rows : ndarray
        Mask or row numbers.
    asked : mapping
        Who looks, and for what, as the ledger is to name it.
    delta : float
        Error probability that the look takes from later certificates; that of the earlier looks
        where they were planned.

    Returns
    -------
    questions : OpenQuestions
    n_looked : int
        Calibration questions of a look that was not in the ledger before; 0 for archives.

    Raises
    ------
    CalibrationError
        The planned looks are used up, or no confidence is left.
    """
    keys = source.table.take(rows).take(source.parts[rows] == _CALIBRATION).keys
    n_looked = 0
    if keys and not source.is_archive:
        with lock_directory(source.folder):
            earlier = looks_at(source.folder, keys)
            planned = earlier[0].planned if earlier else None
            shared = earlier[0].delta if planned else delta
            request = {**asked, "data": source.fingerprint()}
            (look,) = take_looks(source.folder, [LookRequest(keys, request, shared, planned)])
        if look not in earlier:
            n_looked = len(set(keys))
    return opened_rows(source, rows), n_looked


def open_calibration(source: Source, asked: Mapping[str, Any], *, delta: float) -> None:
    """Enter a look at all calibration questions, unless every one was looked at before.

    Raises
    ------
    CalibrationError
        As `open_rows`.
    """
    if closed_questions(source):
        open_rows(source, source.parts == _CALIBRATION, asked, delta=delta)


def open_for_paper(source: Source, settings: Settings, *, allowed: bool) -> None:
    """Open the calibration questions to the paper's protocol, which shows all outcomes.

    Parameters
    ----------
    allowed : bool
        Whether a look may be entered for it.

    Raises
    ------
    CalibrationError
        A look is needed and not allowed; or the paper has no such serving regime.
    """
    if settings.serving == "overlap":
        raise CalibrationError(
            "the paper's serving regimes are kv-fork, prefix-cache and black-box, got 'overlap'"
        )
    closed = closed_questions(source)
    if closed and not allowed:
        raise CalibrationError(
            f"the paper protocol shows outcomes of {len(closed)} calibration questions "
            f"that nobody has looked at: run `stopadvisor calibrate {source.folder}` first, or say "
            "--open-calibration, which is recorded as a look and costs later certificates "
            "confidence"
        )
    asked = {"protocol": "paper", "alpha": settings.alpha, "serving": settings.serving}
    open_calibration(source, asked, delta=settings.delta)
