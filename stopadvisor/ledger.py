"""The ledger of looks: who looked at calibration outcomes, how often, and what that costs.

Every look at the same calibration questions spends error probability.  The ledger is written
before a result is shown, so that a look cannot be taken and forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stopadvisor.errors import CalibrationError, ProbeError
from stopadvisor.runs import write_json_atomically

__all__ = ["LEDGER", "Look", "looks_at", "read_ledger", "take_look"]

LEDGER = "ledger.json"


@dataclass(frozen=True)
class Look:
    """One look at calibration outcomes."""

    number: int
    """Looks so far at any of these calibration questions, this one included."""
    planned: int | None
    """Looks declared beforehand; None: one at a time."""
    delta: float
    """Error probability asked for."""
    spent: float
    """Error probability of all looks so far: k·delta, or delta if they were planned."""
    request: Mapping[str, Any]
    """What was asked: alpha, serving, families, bound …"""
    questions: tuple[str, ...]
    """Keys of the calibration questions looked at."""
    created: str

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
        The ledger is damaged; a certificate cannot be trusted without it.
    """
    path = folder / LEDGER
    if not path.exists():
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
    mine = set(questions)
    return [look for look in read_ledger(folder) if mine & set(look.questions)]


def take_look(
    folder: Path,
    questions: Sequence[str],
    request: Mapping[str, Any],
    *,
    delta: float,
    planned: int | None = None,
) -> Look:
    """Record a look and return what it may claim.

    The same request on the same questions is the same look: its outcome is known already.  The
    union bound over looks is sound where a further look depends on the earlier ones only through
    whether they certified; whoever tunes a request on printed calibration figures needs fresh
    questions.

    Parameters
    ----------
    folder : Path
    questions : sequence of str
        Keys of the calibration questions that will be looked at.
    request : mapping
        Everything that may change the outcome, JSON values.
    delta : float
    planned : int, optional
        Looks declared beforehand, to share delta; must come with the first look.

    Raises
    ------
    CalibrationError
        Planned looks are used up, declared too late, or no confidence is left.
    """
    looks = read_ledger(folder)
    keys = tuple(sorted(set(questions)))
    earlier = looks_at(folder, keys)
    asked = json.loads(json.dumps(dict(request)))  # as it will be read back: tuples become lists
    for look in earlier:
        same = (look.questions, dict(look.request), look.delta) == (keys, asked, delta)
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
    look = Look(number, planned, delta, spent, asked, keys, created)
    write_json_atomically(
        folder / LEDGER, {"schema": 1, "looks": [asdict(row) for row in [*looks, look]]}
    )
    return look
