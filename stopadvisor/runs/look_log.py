"""The log of looks, ``looks.jsonl``: who opened calibration outcomes, when and for what.

A look's line is written and synced under the run's lock before any outcome is handed out.  The run
notes the number of lines and their digest, and every look the digests of the questions and of the
lines of ``probes.jsonl`` that it opened.  This reveals accidents, not a forger who changes the log
and the note together; signatures do.
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
from stopadvisor.ground.json_text import parse_json, read_object
from stopadvisor.runs.directory import ARCHIVE, MANIFEST, digest_of
from stopadvisor.runs.storage import (
    append,
    encode,
    finished_lines,
    set_aside_tail,
    write_json_atomically,
)

__all__ = [
    "LOOKS", "Look", "LookLog", "digests_of", "read_log", "record_regraded",
    "record_result", "record_shown", "refuse_first_release", "timestamp", "write_look",
    "write_row",
]  # fmt: skip

LOOKS = "looks.jsonl"
_PARTIAL = "looks.partial"
_LEDGER = "ledger.json"
"""Where 0.1.0 recorded looks."""
_NOTE = "looks"
"""Field of the manifest, or of an archive's note: number of lines, and their digest."""

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
"""Fields of `Look` by their keys in a line."""
_PUT_BACK = (
    "put back the log of looks of this run (of a copied run: the original's), or probe into "
    "another --out"
)


def timestamp() -> str:
    """The time now, in ISO 8601; ``SOURCE_DATE_EPOCH`` overrides it.

    Raises
    ------
    CalibrationError
        ``SOURCE_DATE_EPOCH`` is not a number of seconds.
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
    """Digests of questions, sorted and without duplicates."""
    return tuple(sorted({digest_of(key) for key in keys}))


@dataclass(frozen=True)
class Look:
    """One look at calibration outcomes."""

    number: int
    """Looks so far at any of these questions, here and in neighbouring runs, this one included."""
    planned: int | None
    """Number of looks declared with the first; None if none was declared."""
    delta: float
    """Error probability of the certificate it was for, without earlier looks."""
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
    """Looks before it at other questions of this run, or in neighbouring runs at other probes of
    these questions."""
    head: str = ""
    """SHA-256 of its line."""
    certified: bool | None = None
    """Whether it ended in a certificate; None if that was never recorded."""

    @property
    def test_delta(self) -> float:
        """Error probability that this look may use up."""
        return self.delta / (self.planned or 1)

    @property
    def opened(self) -> bool:
        """Whether figures of its questions were shown, rather than only that it failed.

        Labelling, looks for anything but a certificate, and the last planned look, which none can
        follow, always show their figures.
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
    """The content of a run's log."""

    looks: tuple[Look, ...] = ()
    """Oldest first."""
    shown: frozenset[str] = frozenset()
    """Digests of questions whose outcomes were shown as fit questions."""
    checks: tuple[Mapping[str, Any], ...] = ()
    """Policies checked on questions, a line each."""
    regraded: Mapping[str, str] = field(default_factory=dict)
    """Digests of lines of ``probes.jsonl`` before regrading, and after."""

    def at(self, questions: Iterable[str]) -> list[Look]:
        """Looks at any of these questions, oldest first."""
        mine = set(questions)
        return [look for look in self.looks if mine & set(look.questions)]

    def missing(self, lines: Iterable[str]) -> Iterator[tuple[Look, int]]:
        """Looks whose lines are gone or changed, with how many; `lines` are the present ones."""
        present = set(lines)

        def is_present(line: str) -> bool:
            followed = set()
            while line not in present and line not in followed:
                followed.add(line)
                line = self.regraded.get(line, line)
            return line in present

        for look in self.looks:
            if gone := sum(not is_present(line) for line in look.lines):
                yield look, gone


def read_log(folder: Path) -> LookLog:
    """Read and check the log of a run directory; empty if nobody has looked yet.

    Raises
    ------
    ProbeError
        The log is damaged, changed, missing or of an earlier version, so that no certificate can be
        trusted.
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


def refuse_first_release(folder: Path) -> None:
    """Refuse a run that 0.1.0 assessed: nobody can tell what it has shown."""
    if (folder / _LEDGER).exists():
        raise ProbeError(
            f"{folder / _LEDGER}: looks recorded by stopadvisor 0.1.0 are not read any more: "
            "continue with 0.1.0, or assess the workload again with --out new/RUN, in a folder "
            "without old runs"
        )


def _checked_lines(folder: Path) -> list[bytes]:
    refuse_first_release(folder)
    lines, _ = finished_lines(folder / LOOKS)
    note = _note_of(folder)[1].get(_NOTE)
    if note is None:
        return lines
    try:
        n_noted, digest = int(note["lines"]), str(note["sha256"])
    except (TypeError, KeyError, ValueError) as error:
        raise ProbeError(f"{folder}: the note of its log of looks is damaged: {error!r}") from error
    # A process killed after the line and before the note leaves more lines than are noted.
    if _digest(lines[:n_noted]) != digest:
        what = "is missing" if not lines else "was changed, or put back to an earlier state"
        raise ProbeError(
            f"{folder / LOOKS}: the log of looks {what}: the run notes {n_noted} line(s) with "
            f"another digest; {_PUT_BACK}"
        )
    return lines


def _digest(lines: Sequence[bytes]) -> str:
    return hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()


def _note_of(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    """The manifest of a run, or the note of an archive, with its content."""
    note = next((p for p in (folder / MANIFEST, folder / ARCHIVE) if p.exists()), None)
    return note, {} if note is None else read_object(note, ProbeError)


# --- Writing --------------------------------------------------------------------------------------


def write_row(folder: Path, row: Mapping[str, Any]) -> None:
    """Append a line, then note it in the run; the caller has read the log."""
    path = folder / LOOKS
    set_aside_tail(path, _PARTIAL)
    append(path, encode(json.dumps(row, allow_nan=False) + "\n"))
    note, content = _note_of(folder)
    if note is not None:
        lines, _ = finished_lines(path)
        noted = {"lines": len(lines), "sha256": _digest(lines)}
        write_json_atomically(note, {**content, _NOTE: noted})


def write_look(folder: Path, look: Look) -> Look:
    """Append a look, and return it as read back; the caller has read the log."""
    write_row(folder, {key: getattr(look, name) for key, name in _LINE.items()})
    return read_log(folder).looks[-1]


def record_result(folder: Path, look: Look, *, certified: bool) -> Look:
    """Record whether a look ended in a certificate, before its result is shown.

    A failed look may still be recorded as certified, once labels were added for it.
    """
    known = next(entry for entry in read_log(folder).looks if entry.head == look.head)
    if known.certified is None or (certified and not known.certified):
        write_row(folder, {"of": look.head, "certified": certified, "time": timestamp()})
        return replace(known, certified=certified)
    return known


def record_shown(folder: Path, questions: Iterable[str], by: str) -> None:
    """Record that outcomes of these fit questions are shown, unless they were before."""
    if new := sorted(set(digests_of(questions)) - read_log(folder).shown):
        write_row(folder, {"shown_sha256": new, "by": by, "time": timestamp()})


def record_regraded(folder: Path, before: Sequence[str], after: Sequence[str]) -> None:
    """Record that lines of probes opened by looks are about to be graded again.

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
