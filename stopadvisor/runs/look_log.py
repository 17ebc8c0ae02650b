"""The log of looks: who opened calibration outcomes, when, and how much may still be claimed.

Every look at the same calibration questions spends error probability.  ``looks.jsonl`` in a run has
a line for each, written and synced under the run's lock before an outcome is handed out.  It shows
accidents: the run notes how many lines there were and their digest, and every look holds the
digests of the questions and of the lines of ``probes.jsonl`` that it opened.  It is no protection
against somebody who forges both; signatures are.  Knows no rule and no bound.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stopadvisor.ground.errors import CalibrationError, ProbeError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.runs.directory import ARCHIVE, MANIFEST, digest_of
from stopadvisor.runs.storage import (
    append,
    encode,
    finished_lines,
    set_aside_tail,
    write_json_atomically,
)

__all__ = [
    "LOOKS",
    "Look",
    "LookLog",
    "as_recorded",
    "digests_of",
    "read_log",
    "record_regraded",
    "record_result",
    "record_shown",
    "timestamp",
    "write_look",
    "write_row",
]

LOOKS = "looks.jsonl"
_PARTIAL = "looks.partial"
_FIRST = "ledger.json"
"""Looks as 0.1.0 recorded them."""
_NOTE = "looks"
"""Field of the manifest, or of an archive's note: how many lines there were, and their digest."""

_LINE = {
    "look": "number",
    "time": "created",
    "asked": "asked",
    "questions_sha256": "questions",
    "lines_sha256": "lines",
    "delta": "delta",
    "planned": "planned",
    "earlier": "earlier",
    "elsewhere": "elsewhere",
}
"""What the line of a look holds: the fields of `Look` by their keys."""
_PUT_BACK = (
    "put back the log of looks that belongs to this run (where the run was copied: that of the run "
    "it was copied from), or probe into another --out"
)


def timestamp() -> str:
    """Say what time it is, in ISO 8601; ``SOURCE_DATE_EPOCH`` rules it where it is set.

    Raises
    ------
    CalibrationError
        ``SOURCE_DATE_EPOCH`` is no number of seconds.
    """
    given = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        now = datetime.now(UTC) if given is None else datetime.fromtimestamp(int(given), UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise CalibrationError(
            f"SOURCE_DATE_EPOCH must be whole seconds since 1970, got {given!r}"
        ) from error
    return now.isoformat(timespec="seconds")


def digests_of(keys: Iterable[str]) -> tuple[str, ...]:
    """Digests of different questions, in an order of their own."""
    return tuple(sorted({digest_of(key) for key in keys}))


def as_recorded(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they will be read back: tuples become lists."""
    return dict(parse_json(json.dumps(dict(asked), allow_nan=False)))


@dataclass(frozen=True)
class Look:
    """One look at calibration outcomes."""

    number: int
    """Looks so far at any of these questions, also in runs next to this one; this one included."""
    planned: int | None
    """Looks declared beforehand; None: one at a time."""
    delta: float
    """Error probability that the certificate was to have."""
    earlier: tuple[float, ...]
    """`delta` of each look before this one; empty if looks were planned, which share one."""
    asked: Mapping[str, Any]
    """Settings of the look: alpha, serving, families …; ``data`` is the hash of the probes."""
    questions: tuple[str, ...]
    """Digests of the questions that it opened."""
    lines: tuple[str, ...]
    """Digests of the lines of ``probes.jsonl`` that it opened."""
    created: str
    """When it was taken, in ISO 8601."""
    elsewhere: int = 0
    """Looks by then at other questions of this run, or at other probes of these next to it."""
    head: str = ""
    """Digest of its line."""
    certified: bool | None = None
    """Whether it ended in a certificate; None where that was never recorded."""

    @property
    def test_delta(self) -> float:
        """Error probability that this look may use up."""
        return self.delta / (self.planned or 1)

    @property
    def opened(self) -> bool:
        """Whether figures of its questions were shown; else at most that it failed.

        Those of labelling, of whatever is no certificate, and of the last planned look, after which
        none can come, are shown whatever came of it.
        """
        shows = "asking" in self.asked or "standing" in self.asked or self.number == self.planned
        return shows or self.certified is True

    @property
    def spent(self) -> float:
        """Error probability of all looks so far: k·delta, or delta if they were planned."""
        return self.delta + sum(self.earlier)

    @property
    def confidence(self) -> float:
        """Confidence of this look's certificate, by the union bound over looks."""
        return 1 - self.spent


# --- Reading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LookLog:
    """What a run's log holds."""

    looks: tuple[Look, ...] = ()
    """Oldest first."""
    shown: frozenset[str] = frozenset()
    """Digests of questions whose outcomes were shown as those of fit questions."""
    checks: tuple[Mapping[str, Any], ...] = ()
    """Policies that were held against questions."""
    regraded: Mapping[str, str] = field(default_factory=dict)
    """Lines of probes that were graded again: their digests before and after."""

    def at(self, questions: Iterable[str]) -> list[Look]:
        """Looks at any of these questions, oldest first."""
        mine = set(questions)
        return [look for look in self.looks if mine & set(look.questions)]

    def missing(self, lines: Iterable[str]) -> Iterator[tuple[Look, int]]:
        """Looks of which lines are gone or changed, with how many; `lines` are those there are."""
        there = set(lines)

        def stands(line: str) -> bool:
            known = set()
            while line not in there and line not in known:
                known.add(line)
                line = self.regraded.get(line, line)
            return line in there

        for look in self.looks:
            if gone := sum(not stands(line) for line in look.lines):
                yield look, gone


def read_log(folder: Path) -> LookLog:
    """Read and check the log of a run directory; empty where nobody has looked.

    Raises
    ------
    ProbeError
        It is damaged, was changed, was taken away or was put back to an earlier state; a
        certificate cannot be trusted without it.
    """
    looks: list[Look] = []
    shown: set[str] = set()
    checks: list[Mapping[str, Any]] = []
    regraded: dict[str, str] = {}
    for number, line in enumerate(_checked_lines(folder), start=1):
        try:
            row = parse_json(line)
            if "asked" in row:
                values = {name: row[key] for key, name in _LINE.items()}
                values |= {name: tuple(values[name]) for name in ("questions", "lines", "earlier")}
                looks.append(Look(**values, head=hashlib.sha256(line).hexdigest()))
            elif "certified" in row:
                place = [look.head for look in looks].index(row["of"])
                looks[place] = replace(looks[place], certified=row["certified"])
            elif "policy" in row:
                checks.append(row)
            elif "regraded" in row:
                regraded |= row["regraded"]
            else:
                shown |= set(row["shown_sha256"])
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ProbeError(
                f"{folder / LOOKS}: line {number} is damaged: {error!r}; {_PUT_BACK}"
            ) from error
    return LookLog(tuple(looks), frozenset(shown), tuple(checks), regraded)


def _checked_lines(folder: Path) -> list[bytes]:
    if (folder / _FIRST).exists():
        raise ProbeError(
            f"{folder / _FIRST}: looks recorded by stopadvisor 0.1.0 are not read any more: go on "
            "with 0.1.0, or probe into another --out"
        )
    lines, _ = finished_lines(folder / LOOKS)
    note = _note_of(folder)[1].get(_NOTE)
    if note is None:
        return lines
    try:
        n_noted, digest = int(note["lines"]), str(note["sha256"])
    except (TypeError, KeyError, ValueError) as error:
        raise ProbeError(f"{folder}: its note of the log of looks is damaged: {error!r}") from error
    # A process killed between line and note leaves more lines than are noted.
    if _digest(lines[:n_noted]) != digest:
        what = "is missing" if not lines else "was changed, or put back to an earlier state"
        raise ProbeError(
            f"{folder / LOOKS}: the log of looks {what}: the run notes {n_noted} line(s) of "
            f"another digest; {_PUT_BACK}"
        )
    return lines


def _digest(lines: Sequence[bytes]) -> str:
    return hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()


def _note_of(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    """The manifest of a run, or the note of an archive, and what it holds."""
    note = next((p for p in (folder / MANIFEST, folder / ARCHIVE) if p.exists()), None)
    try:
        return note, {} if note is None else dict(parse_json(note.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise ProbeError(f"{note}: cannot read: {error}") from error


# --- Writing --------------------------------------------------------------------------------------


def write_row(folder: Path, row: Mapping[str, Any]) -> None:
    """Append a line, then note it in the run; whoever calls has read the log."""
    path = folder / LOOKS
    set_aside_tail(path, folder / _PARTIAL)
    append(path, encode(json.dumps(row, allow_nan=False) + "\n"))
    note, content = _note_of(folder)
    if note is not None:
        lines, _ = finished_lines(path)
        noted = {"lines": len(lines), "sha256": _digest(lines)}
        write_json_atomically(note, {**content, _NOTE: noted})


def write_look(folder: Path, look: Look) -> Look:
    """Append a look, and return it as it stands in the log; whoever calls has read the log."""
    write_row(folder, {key: getattr(look, name) for key, name in _LINE.items()})
    return read_log(folder).looks[-1]


def record_result(folder: Path, look: Look, *, certified: bool) -> Look:
    """Record whether a look ended in a certificate, before the result is shown; return it so.

    One that failed may still end in a certificate, once labels were added for it.
    """
    known = next(each for each in read_log(folder).looks if each.head == look.head)
    if known.certified is None or (certified and not known.certified):
        write_row(folder, {"of": look.head, "certified": certified, "time": timestamp()})
        return replace(known, certified=certified)
    return known


def record_shown(folder: Path, questions: Iterable[str], by: str) -> None:
    """Record that outcomes of questions are shown as fit questions, in so far as it is new."""
    if new := sorted(set(digests_of(questions)) - read_log(folder).shown):
        write_row(folder, {"shown_sha256": new, "by": by, "time": timestamp()})


def record_regraded(folder: Path, before: Sequence[str], after: Sequence[str]) -> None:
    """Record that lines of probes are about to be graded again, where looks have opened them.

    `before` and `after` are the digests of all lines, in the order of the file.
    """
    log = read_log(folder)
    opened = {line for look in log.looks for line in look.lines} | set(log.regraded.values())
    changed = {
        old: new
        for old, new in zip(before, after, strict=True)
        if old != new and old in opened and log.regraded.get(old) != new
    }
    if changed:
        write_row(folder, {"regraded": changed, "time": timestamp()})
