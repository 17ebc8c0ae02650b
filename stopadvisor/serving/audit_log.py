"""An append-only log of audits without any text: how a server writes it, and where it stands.

`audit_records` says what stands in it.  A line is one write: whatever is killed, a line is there or
it is not.  Only a power failure can tear the last one, which is moved to the next line and
reported.
"""

from __future__ import annotations

import io
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stopadvisor.ground.errors import CalibrationError, OutputError, PolicyError
from stopadvisor.ground.printable import short_repr
from stopadvisor.ground.progress import tracked
from stopadvisor.policy.frozen import Policy
from stopadvisor.runs.storage import make_folder, no_follow
from stopadvisor.serving.audit_records import (
    LOG_NAME,
    SCHEMA,
    Series,
    count_records,
    log_number,
    merged,
    parse_record,
    read_header,
    read_series,
    record_line,
)
from stopadvisor.serving.monitoring import Course
from stopadvisor.serving.watch_settings import WatchSettings, watch_settings

__all__ = ["AuditLog", "replay", "reset"]

_DAY = 86_400.0
_LOOK_SECONDS = 1.0
"""How often a log looks whether its file is still there."""


class AuditLog:
    """What one replica writes.

    A new file is begun at `max_bytes`, and those that were written last before `keep_days` are
    deleted then.  No two processes share a `replica`.  Opening a log again goes on where it ended:
    an alarm stays one until it is reset, and audits that were on their way are given up.

    Raises
    ------
    OutputError
        The folder cannot be written, or the replica's name is no name.
    PolicyError
        What the replica wrote before is damaged, or was written under other settings.
    """

    def __init__(
        self,
        folder: Path,
        replica: str,
        settings: WatchSettings,
        reference: Mapping[str, Sequence[float]] | None = None,
        *,
        max_bytes: int = 64_000_000,
        keep_days: float = 90.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._replica, self._clock = folder, replica, clock
        self._settings, self._max_bytes, self._keep_days = settings, max_bytes, keep_days
        self._number, self._looked = 0, 0.0
        if not LOG_NAME.fullmatch(self._name()):
            raise OutputError(
                f"an audit log's replica is named by letters, digits, '.' and '_', got {replica!r}"
            )
        make_folder(folder)
        self._close: Callable[[], object] = lambda: None
        self.course = Course(settings, reference)
        before = self._files()
        if not before:
            self._begin()
            return
        last = before[-1]
        header = read_header(last)
        if WatchSettings(**header["settings"]) != settings:
            raise PolicyError(
                f"{last}: written under other settings; give the same --audit and alarms as "
                "before, or another folder"
            )
        if header["state"] is not None:
            self.course = Course.restore(settings, header["state"])
        for record in read_series(Series(replica, (last,)), []):
            self.course.apply(record)
        self._number = log_number(last)
        self._open(last)
        self._end_torn_line()
        for key in self.course.processes["differs"].open_keys():
            self.write("shed", id=str(key).partition("/")[2])

    def write(self, kind: str, **fields: Any) -> None:
        """Write a record, and let it count."""
        record = {"kind": kind, "t": round(self._clock() * 1000) / 1000, **fields}
        self._append(record)
        self.course.apply(record)
        if self._size >= self._max_bytes:
            self._number += 1
            self._begin()
            oldest = self._clock() - self._keep_days * _DAY
            for path in self._files():
                if path != self._path and path.stat().st_mtime < oldest:
                    path.unlink()

    def take_in_resets(self) -> None:
        """Apply what `monitor --reset` wrote after our last line."""
        end = os.fstat(self._file.fileno()).st_size
        self._apply_resets(end)
        self._size = end

    def _name(self) -> str:
        return f"audit-{self._settings.digest[:8]}-{self._replica}-{self._number:06d}.jsonl"

    def _files(self) -> list[Path]:
        """Those of this policy and replica, oldest first; others write into the same folder."""
        own = (self._settings.digest[:8], self._replica)
        named = ((path, LOG_NAME.fullmatch(path.name)) for path in self._folder.iterdir())
        return sorted((p for p, name in named if name and name.groups()[:2] == own), key=log_number)

    def _begin(self) -> None:
        self._open(self._folder / self._name())
        self._append(
            {
                "kind": "header",
                "t": round(self._clock(), 3),
                "schema": SCHEMA,
                "replica": self._replica,
                "settings": asdict(self._settings),
                "keep_days": self._keep_days,
                "state": self.course.state() if self._number else None,
            }
        )

    def _open(self, path: Path) -> None:
        """Hold a file open: opening it takes longer than to write a line."""
        file = _opened(path)
        self._close()
        self._close = weakref.finalize(self, file.close)
        self._path, self._file = path, file
        self._size = os.fstat(file.fileno()).st_size

    def _append(self, record: Mapping[str, Any]) -> None:
        data = record_line(record)
        if not 0 <= record["t"] - self._looked < _LOOK_SECONDS:
            self._look()
            self._looked = record["t"]
        # Where the line ends tells what somebody else wrote before it.
        end = _write(self._file, data, self._path)
        if end > self._size + len(data):
            self._apply_resets(end - len(data))
        self._size = end

    def _look(self) -> None:
        """See whether the file that is held open is still the one with its name."""
        try:
            same = os.path.samestat(os.lstat(self._path), os.fstat(self._file.fileno()))
        except FileNotFoundError:  # somebody took it away: the next one says where we stood
            self._number += 1
            self._begin()
            return
        if not same:
            raise OutputError(f"cannot write {self._path}: another file was put in its place")

    def _apply_resets(self, end: int) -> None:
        added = os.pread(self._file.fileno(), max(end - self._size, 0), self._size)
        for line in added.splitlines():
            try:
                record = parse_record(line)
            except ValueError:
                continue  # said when the log is read again
            if isinstance(record, dict) and record.get("kind") == "reset":
                self.course.apply(record)

    def _end_torn_line(self) -> None:
        if os.pread(self._file.fileno(), 1, max(self._size - 1, 0)) not in (b"", b"\n"):
            self._size = _write(self._file, b"\n", self._path)


def _opened(path: Path) -> io.FileIO:
    try:
        return open(path, "ab+", buffering=0, opener=no_follow)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error


def _write(file: io.FileIO, data: bytes, path: Path) -> int:
    """Add a line in one write: it is there or it is not; returns where it ends."""
    try:
        written = file.write(data)
        end = file.tell()
        if written != len(data):  # the disk is full: no half line for the next one to end
            file.truncate(end - written)
            raise OutputError(f"cannot write {path}: no space left")
        return end
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error


def reset(series: Sequence[Series], by: str) -> None:
    """Write into each log that somebody looked into its alarm.

    A server that is running reads it when it starts again.
    """
    if not by.strip() or not by.isprintable():
        raise PolicyError("--reset needs a name in printable characters")
    for one in series:
        path = one.files[-1]
        with _opened(path) as file:
            _write(file, record_line({"kind": "reset", "t": round(time.time(), 3), "by": by}), path)


def replay(
    series: Sequence[Series],
    reference: Mapping[str, Sequence[float]] | None = None,
    *,
    gold: Mapping[str, tuple[bool, bool]] | None = None,
    policy: Policy | None = None,
) -> tuple[Course, tuple[str, ...]]:
    """Read logs again, several replicas merged by time; also says what is torn or gone.

    `gold` is settled last; where a `policy` is given the logs have to be about its promise.  Within
    a replica records keep their order, whatever its clock does; a difference of clocks between
    replicas moves requests by as much and breaks no promise, because no outcome decides on a
    request's time.

    Raises
    ------
    PolicyError
        A log is damaged, or was written under other settings than the first.
    """
    headers = [read_header(one.files[0]) for one in series]
    settings = WatchSettings(**headers[0]["settings"])
    for one, header in zip(series, headers, strict=True):
        if WatchSettings(**header["settings"]) != settings:
            raise PolicyError(
                f"{one.files[0]}: written under other settings than {series[0].files[0]}: "
                "one test has one alpha, delta and audit share; give the logs one by one"
            )
    remarks: list[str] = []
    states = [header["state"] for header in headers if header["state"] is not None]
    if states:
        remarks.append(f"{len(states)} of {len(series)} logs begin later than their replica did")
    if policy is not None:
        _check_settings(settings, policy, series[0].files[0])
    course = Course.join(settings, states, reference)
    records = merged(series, remarks)
    for replica, record in tracked("reading audits", records, count_records(series)):
        try:
            course.apply(record, replica if len(series) > 1 else "")
        except CalibrationError as error:
            raise PolicyError(f"the log of replica {replica}: {error}") from error
    if gold:
        course.settle(gold)
    return course, tuple(remarks)


def _check_settings(found: WatchSettings, policy: Policy, path: Path) -> None:
    """Refuse a log that watches something else than the policy promises."""
    own = watch_settings(
        policy, share=found.share, change=found.change, differs_limit=found.differs_limit
    )
    for name, value in asdict(own).items():
        if getattr(found, name) != value:
            raise PolicyError(
                f"{path}, line 1: expected the policy's own {name} ({value!r}), got "
                f"{short_repr(getattr(found, name))}"
            )
