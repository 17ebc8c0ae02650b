"""The ledger of looks: who looked at calibration outcomes, how often, and what that costs.

Every look at the same calibration questions spends error probability.  The ledger is written
before a result is shown, so that a look cannot be taken and forgotten.  Calibration outcomes are
handed out here, for a look.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stopadvisor.errors import CalibrationError, ProbeError
from stopadvisor.probes.outcomes import CalibrationQuestions, SealedQuestions
from stopadvisor.runs.directory import write_json_atomically

__all__ = [
    "CALIBRATION",
    "LEDGER",
    "Look",
    "LookRequest",
    "hand_out",
    "looks_at",
    "read_ledger",
    "take_looks",
]

LEDGER = "ledger.json"
CALIBRATION = "calibration.json"
"""What `calibrate` found, which it could not without an entry in the ledger beside it."""


@dataclass(frozen=True)
class Look:
    """One look at calibration outcomes."""

    number: int
    """Looks so far at any of these calibration questions, this one included."""
    planned: int | None
    """Looks declared beforehand; None: one at a time."""
    delta: float
    """Error probability that the certificate was to have."""
    spent: float
    """Error probability of all looks so far: k·delta, or delta if they were planned."""
    request: Mapping[str, Any]
    """Settings of the look: alpha, serving, families, bound …"""
    questions: tuple[str, ...]
    """Keys of the calibration questions looked at."""
    created: str
    elsewhere: int = 0
    """Looks by then at other questions of this run, or at these questions in neighbouring runs."""

    @property
    def test_delta(self) -> float:
        """Error probability that this look may use up."""
        return self.delta if self.planned is None else self.delta / self.planned

    @property
    def confidence(self) -> float:
        """Confidence of this look's certificate, by the union bound over looks."""
        return 1 - self.spent


def read_ledger(folder: Path) -> list[Look]:
    """Looks recorded in a run directory, oldest first.

    Raises
    ------
    ProbeError
        The ledger is damaged or was taken away; a certificate cannot be trusted without it.
    """
    path = folder / LEDGER
    if not path.exists():
        if (folder / CALIBRATION).exists():
            raise ProbeError(
                f"{path}: the ledger of looks is missing, and {CALIBRATION} beside it shows that "
                "there was one: put it back, or probe into another --out"
            )
        return []
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["looks"]
        return [Look(**{**row, "questions": tuple(row["questions"])}) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProbeError(f"{path}: the ledger of looks is damaged: {error}") from error


def looks_at(folder: Path, questions: Sequence[str]) -> list[Look]:
    """Looks at any of these questions, oldest first.

    Raises
    ------
    ProbeError
        The ledger is damaged.
    """
    return _at(read_ledger(folder), questions)


@dataclass(frozen=True)
class LookRequest:
    """A look that is about to be taken."""

    questions: Sequence[str]
    """Keys of the calibration questions that will be looked at."""
    request: Mapping[str, Any]
    """Everything that may change the outcome, JSON values."""
    delta: float
    planned: int | None = None
    """Looks declared beforehand, to share delta; must come with the first look."""
    elsewhere: int = 0
    """Looks at these questions that neighbouring runs recorded."""


def take_looks(folder: Path, asks: Sequence[LookRequest]) -> list[Look]:
    """Record looks, all of them or none, and return what each may claim.

    The same request on the same questions is the same look: its outcome is known already.  The
    union bound over looks is sound where a further look depends on the earlier ones only through
    whether they certified; whoever tunes a request on printed calibration figures needs fresh
    questions.

    Raises
    ------
    CalibrationError
        Planned looks are used up, declared too late, or no confidence is left.
    """
    recorded = read_ledger(folder)
    looks, found = list(recorded), []
    for ask in asks:
        look = _next_look(looks, ask)
        if look not in looks:
            looks.append(look)
        found.append(look)
    if len(looks) > len(recorded):
        content = {"schema": 1, "looks": [asdict(look) for look in looks]}
        write_json_atomically(folder / LEDGER, content)
    return found


def hand_out(sealed: SealedQuestions, look: Look) -> CalibrationQuestions:
    """The questions of a look with their outcomes.

    Raises
    ------
    CalibrationError
        Some of them are not among those looked at.
    """
    missing = set(sealed.keys) - set(look.questions)
    if missing:
        raise CalibrationError(
            f"look {look.number} is not about {len(missing)} of these questions, e.g. "
            f"{min(missing)!r}: their outcomes stay closed"
        )
    return sealed.unseal().as_calibration()


def _next_look(looks: Sequence[Look], ask: LookRequest) -> Look:
    """The look that was taken already, or the next one."""
    keys = tuple(sorted(set(ask.questions)))
    earlier = _at(looks, keys)
    # As it will be read back: tuples become lists.
    request = json.loads(json.dumps(dict(ask.request)))
    delta, planned = ask.delta, ask.planned
    for look in earlier:
        same = (look.questions, dict(look.request), look.delta) == (keys, request, delta)
        if same and planned in (None, look.planned):
            return look
    if planned is None and earlier:
        planned = earlier[0].planned
    if any(look.planned != planned for look in earlier):
        raise CalibrationError(
            f"looks must be declared with the first look, got --looks {planned} after "
            f"{len(earlier)} look(s) without that plan"
        )
    if earlier and planned is not None and delta != earlier[0].delta:
        raise CalibrationError(
            f"planned looks share one delta ({earlier[0].delta:g}), got {delta!r}"
        )
    number = len(earlier) + 1
    if planned is not None and number > planned:
        raise CalibrationError(
            f"all {planned} planned looks at these calibration questions are used up; add labels "
            "and calibrate on the new ones with --fresh"
        )
    spent = delta if planned is not None else delta + sum(look.delta for look in earlier)
    if spent >= 1:
        raise CalibrationError(
            f"look {number} at delta = {delta:g} leaves no confidence; add labels and calibrate "
            "on the new ones with --fresh"
        )
    created = datetime.now(UTC).isoformat(timespec="seconds")
    elsewhere = ask.elsewhere + len(looks) - len(earlier)
    return Look(number, planned, delta, spent, request, keys, created, elsewhere)


def _at(looks: Sequence[Look], questions: Sequence[str]) -> list[Look]:
    mine = set(questions)
    return [look for look in looks if mine & set(look.questions)]
