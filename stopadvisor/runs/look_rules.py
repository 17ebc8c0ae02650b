"""Which look may follow which, and what it may claim.

Every look at the same calibration questions spends error probability, and none may depend on
figures that an earlier one showed.  Knows the log, and no rule and no bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stopadvisor.errors import CalibrationError
from stopadvisor.runs.look_log import (
    Look,
    LookLog,
    as_recorded,
    read_log,
    row_of,
    timestamp,
    write_rows,
)

__all__ = ["LookRequest", "take_look"]


@dataclass(frozen=True)
class LookRequest:
    """A look that is about to be taken."""

    questions: tuple[str, ...]
    """Digests of the questions that it will open."""
    asked: Mapping[str, Any]
    """Everything that may change the outcome, as JSON values.

    ``standing`` are the settings with which a certificate may still follow a look that shows
    outcomes.
    """
    delta: float
    planned: int | None = None
    """Looks declared beforehand, to share delta; must come with the first look."""
    lines: tuple[str, ...] = ()
    """Digests of the lines of probes that it will open."""
    elsewhere: int = 0
    """Looks at these questions, but at other probes, in runs next to this one."""
    beside: Mapping[str, Sequence[Look]] = field(default_factory=dict)
    """Looks at the same probes in runs next to this one, by folder."""


def take_look(folder: Path, ask: LookRequest) -> Look:
    """Record a look and return what it may claim.

    The same request on the same questions is the same look: its outcome is known already.  The
    union bound over looks is sound where no request depends on calibration figures.  So a look for
    a certificate comes after failures alone, of which nothing was shown; or with settings that
    stood, or were tested, before any figure was shown.

    Raises
    ------
    CalibrationError
        Figures of these questions were shown before; planned looks are used up or declared too
        late; or no confidence is left.
    ProbeError
        As `read_log`.
    """
    log = read_log(folder)
    look = _next_look(log, ask)
    if look in log.looks:
        return look
    write_rows(folder, [row_of(look)])
    return read_log(folder).looks[-1]


def _next_look(log: LookLog, ask: LookRequest) -> Look:
    """The look that was taken already, or the next one, which has no line yet."""
    keys = tuple(sorted(set(ask.questions)))
    own = log.at(keys)
    tried = [_what(look) for look in own]
    beside = {
        name: [look for look in theirs if _what(look) not in tried]  # a copy's are the same looks
        for name, theirs in ask.beside.items()
    }
    earlier = [*own, *(look for theirs in beside.values() for look in theirs)]
    asked, delta, planned = as_recorded(ask.asked), ask.delta, ask.planned
    for look in earlier:
        same = _what(look) == (keys, asked, delta)
        if same and planned in (None, look.planned):
            return look
    certifies = "standing" not in asked
    if certifies and (spoilt := log.shown & set(keys)):
        raise CalibrationError(
            f"{len(spoilt)} of these questions served as fit questions, which shows their "
            "outcomes: they can certify nothing; say --fresh"
        )
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
    if certifies:
        _check_unseen(own, asked)
        for name, theirs in beside.items():
            _check_unseen(theirs, asked, f" in {name}, which holds the same probes")
    spent = delta if planned is not None else delta + sum(look.delta for look in earlier)
    if spent >= 1:
        raise CalibrationError(
            f"look {number} at delta = {delta:g} leaves no confidence; add labels and calibrate "
            "on the new ones with --fresh"
        )
    elsewhere = ask.elsewhere + len(log.looks) - len(own)
    lines = tuple(sorted(set(ask.lines)))
    return Look(number, planned, delta, spent, asked, keys, lines, timestamp(), elsewhere)


def _what(look: Look) -> tuple[Any, ...]:
    """What makes a look the same one, wherever it is recorded."""
    return look.questions, dict(look.asked), look.delta


def _check_unseen(earlier: Sequence[Look], asked: Mapping[str, Any], where: str = "") -> None:
    """Refuse settings that may have been chosen by figures of these calibration questions."""
    for place, look in enumerate(earlier):
        known = earlier[: place + 1]
        if look.opened and not any(_allows(past, asked, own=not where) for past in known):
            what = (
                "ended in a certificate"
                if look.certified
                else f"showed their outcomes ({', '.join(_who(look))})"
            )
            raise CalibrationError(
                f"look {look.number} at these calibration questions{where}, of "
                f"{look.created[:10]}, "
                f"{what}: other settings could have been chosen by what it showed, and a "
                "certificate of theirs would promise more than it holds. Add labelled questions "
                "and say --fresh"
            )


def _allows(look: Look, asked: Mapping[str, Any], *, own: bool) -> bool:
    """Whether a look of this run had these settings, or left them standing.

    Next door the split may be another, which nobody settled beforehand.
    """
    had = {key: value for key, value in look.asked.items() if key != "data"}
    if "asking" in asked and had.get("loss") == "differs":
        # Lost answers are among those that differ: whoever certified these may label for those.
        del had["loss"]
    standing = had.pop("standing", None)
    rows = [had] if own and standing is None else []
    rows += [] if standing is None else [standing]
    # How many labels count is settled before any figure of these questions is shown.
    return any(
        all(key in asked and asked[key] == value for key, value in row.items())
        and row.get("labels") == asked.get("labels")
        for row in rows
    )


def _who(look: Look) -> list[str]:
    """Who looked, as the log names it."""
    return [str(look.asked[name]) for name in ("protocol", "study") if name in look.asked]
