"""The records of audits: an append-only log without any text, and how logs are read again.

A folder holds one series of files for each policy and replica, `audit-DIGEST-REPLICA-NUMBER.jsonl`.
The first line of a file is its header: the settings, and where the series stood when the file was
begun, so that a deleted file takes no evidence along.  Then one line for each covered request, for
each result of an audit, and for what people say: gold, and a reset after an alarm.

A line is one write: whatever is killed, a line is there or it is not.  Only a power failure can
tear the last one, which is moved to the next line and reported.
"""

from __future__ import annotations

import heapq
import io
import os
import re
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stopadvisor.ground.errors import CalibrationError, OutputError, PolicyError
from stopadvisor.ground.printable import short_repr
from stopadvisor.ground.progress import tracked
from stopadvisor.policy.frozen import Policy
from stopadvisor.runs.storage import make_folder, no_follow
from stopadvisor.serving.audit_records import (
    SCHEMA,
    Said,
    count_records,
    parse_record,
    read_header,
    read_records,
    record_line,
)
from stopadvisor.serving.monitoring import Course
from stopadvisor.serving.watch_settings import WatchSettings, watch_settings

__all__ = ["AuditLog", "Series", "find_series", "merged", "replay", "reset"]

_NAME = re.compile(r"audit-([0-9a-f]{8})-([A-Za-z0-9_.]{1,64})-([0-9]{6})\.jsonl")
_DAY = 86_400.0
_LOOK_SECONDS = 1.0
"""How often a log looks whether its file is still there."""


@dataclass(frozen=True)
class Series:
    """The files of one replica, oldest first."""

    replica: str
    files: tuple[Path, ...]


class AuditLog:
    """What one replica writes.

    Parameters
    ----------
    folder : Path
        Made where it is missing.
    replica : str
        Letters, digits, dot and underscore; no two processes share one.
    settings : WatchSettings
    reference : mapping of str to sequence of float, optional
        See `Course`.
    max_bytes : int
        Size at which a new file is begun.
    keep_days : float
        Files that were written last before that many days are deleted when a new one is begun.
    clock : callable
        Seconds since 1970.

    Raises
    ------
    OutputError
        The folder cannot be written, or the replica's name is no name.
    PolicyError
        What the replica wrote before is damaged, or was written under other settings.

    Notes
    -----
    Opening a log again goes on where it ended: an alarm stays one until it is reset.  Audits that
    were on their way when the process ended are given up.
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
        if not _NAME.fullmatch(self._name(0)):
            raise OutputError(
                f"an audit log's replica is named by letters, digits, '.' and '_', got {replica!r}"
            )
        make_folder(folder)
        before = sorted(filter(self._is_mine, folder.iterdir()), key=_number)
        self.course = Course(settings, reference)
        self._number, self._looked = 0, 0.0
        self._close: Callable[[], object] = lambda: None
        if before:
            last = before[-1]
            self._number = _number(last)
            self.course, given_up = _reopened(last, settings, reference)
            self._open(last)
            self._end_torn_line()
            for key in given_up:
                self.write("shed", id=key)
        else:
            self._begin()

    def write(self, kind: str, **fields: Any) -> None:
        """Write a record, and let it count."""
        record = {"kind": kind, "t": round(self._clock() * 1000) / 1000, **fields}
        self._append(record)
        self.course.apply(record)
        if self._size >= self._max_bytes:
            self._number += 1
            self._begin()
            self._forget_old()

    def _is_mine(self, path: Path) -> bool:
        """Whether a file is of this policy and replica; others write into the same folder."""
        found = _NAME.fullmatch(path.name)
        return found is not None and found.groups()[:2] == (
            self._settings.digest[:8],
            self._replica,
        )

    def _name(self, number: int) -> str:
        return f"audit-{self._settings.digest[:8]}-{self._replica}-{number:06d}.jsonl"

    def _begin(self) -> None:
        self._open(self._folder / self._name(self._number))
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

    def take_in_resets(self) -> None:
        """Apply what `monitor --reset` wrote after our last line."""
        end = os.fstat(self._file.fileno()).st_size
        self._apply_resets(end)
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
        with open(self._path, "rb+", opener=no_follow) as file:
            if self._size:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
                    self._size += 1

    def _forget_old(self) -> None:
        oldest = self._clock() - self._keep_days * _DAY
        for path in self._folder.iterdir():
            if self._is_mine(path) and path != self._path and path.stat().st_mtime < oldest:
                path.unlink()


def find_series(paths: Iterable[Path], digest: str) -> tuple[Series, ...]:
    """The logs of a policy among files and folders.

    Raises
    ------
    PolicyError
        There is none, but logs of another policy are; or a file has another name than logs have.
    """
    found: dict[tuple[Path, str], list[Path]] = {}
    others: list[Path] = []
    for path in paths:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        for file in files:
            name = _NAME.fullmatch(file.name)
            if name is None:
                if file == path:
                    raise PolicyError(f"{path}: not named like an audit log, audit-*.jsonl")
            elif name[1] == digest[:8]:
                found.setdefault((file.parent, name[2]), []).append(file)
            else:
                others.append(file)
    if others and not found:
        raise PolicyError(f"{others[0]}: a log of another policy; this one is {digest[:8]}")
    several = len({folder for folder, _ in found}) > 1
    return tuple(
        Series(str(folder / name) if several else name, tuple(sorted(files, key=_number)))
        for (folder, name), files in sorted(found.items())
    )


def replay(
    series: Sequence[Series],
    reference: Mapping[str, Sequence[float]] | None = None,
    *,
    gold: Mapping[str, tuple[bool, bool]] | None = None,
    policy: Policy | None = None,
) -> tuple[Course, tuple[str, ...]]:
    """Read logs again, several replicas merged by time.

    Parameters
    ----------
    series : sequence of Series
        At least one.
    reference : mapping, optional
        See `Course`.
    gold : mapping, optional
        See `Course.settle`; applied last.
    policy : Policy, optional
        Whose promise the logs have to be about; not checked where none is given.

    Returns
    -------
    course : Course
    remarks : tuple of str
        Torn lines, and what is no longer there.

    Raises
    ------
    PolicyError
        A log is damaged, or was written under other settings than the first.

    Notes
    -----
    Within a replica records keep their order, whatever its clock does; a difference of clocks
    between replicas moves requests by as much and breaks no promise, because no outcome decides on
    a request's time.
    """
    remarks: list[str] = []
    headers = [read_header(one.files[0]) for one in series]
    settings = WatchSettings(**headers[0]["settings"])
    for one, header in zip(series, headers, strict=True):
        if WatchSettings(**header["settings"]) != settings:
            raise PolicyError(
                f"{one.files[0]}: written under other settings than {series[0].files[0]}: "
                "one test has one alpha, delta and audit share; give the logs one by one"
            )
    states = [header["state"] for header in headers if header["state"] is not None]
    if states:
        remarks.append(f"{len(states)} of {len(series)} logs begin later than their replica did")
    if policy is not None:
        _check_settings(settings, policy, series[0].files[0])
    course = Course.join(settings, states, reference)
    total = sum(count_records(path) for one in series for path in one.files)
    for replica, record in tracked("reading audits", merged(series, remarks), total):
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


def merged(
    series: Sequence[Series], remarks: list[str] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Records of several replicas in the order of their times.

    Yields
    ------
    replica : str
    record : dict
    """
    remarks = [] if remarks is None else remarks

    def records(one: Series) -> Iterator[dict[str, Any]]:
        said = Said(read_header(one.files[0]))
        for path in one.files:
            yield from read_records(path, remarks, said)
        if said.orphans:
            remarks.append(
                f"{one.files[0]}: results without a request that was to be audited, left out: "
                f"{said.orphans}"
            )

    def timed(number: int, one: Series) -> Iterator[tuple[float, int, dict[str, Any]]]:
        latest = 0.0
        for record in records(one):
            latest = max(latest, float(record["t"]))
            yield latest, number, record

    if len(series) == 1:  # one that is alone keeps its order anyway
        for record in records(series[0]):
            yield series[0].replica, record
        return
    streams = [timed(number, one) for number, one in enumerate(series)]
    for _, number, record in heapq.merge(*streams, key=lambda item: item[:2]):
        yield series[number].replica, record


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


def _number(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    assert found is not None  # only such paths come here
    return int(found[3])


def _reopened(
    path: Path, settings: WatchSettings, reference: Mapping[str, Sequence[float]] | None
) -> tuple[Course, list[str]]:
    """Where a file's replica stands, and which of its audits have no result."""
    header = read_header(path)
    if WatchSettings(**header["settings"]) != settings:
        raise PolicyError(
            f"{path}: written under other settings; give the same --audit and alarms as before, or "
            "another folder"
        )
    state = header["state"]
    course = Course(settings, reference) if state is None else Course.restore(settings, state)
    for record in read_records(path, [], Said(header)):
        course.apply(record)
    return course, [str(key).partition("/")[2] for key in course.processes["differs"].open_keys()]
