"""The append-only log of audits, which holds no text of requests or replies.

A folder holds one series of files for each policy, `audit-DIGEST-0-NUMBER.jsonl`.  A file's first
line is its header: the settings, and the state of the series when the file was begun, so that
deleting older files loses no evidence.  Then comes a line for each covered request, each audit's
result, and each reset after an alarm.  One system call writes each line, so a killed process leaves
a whole line or none; only a power failure can tear the last one.
"""

from __future__ import annotations

import errno
import fcntl
import heapq
import io
import json
import os
import re
import stat
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from stopadvisor.ground.errors import CalibrationError, OutputError, PolicyError
from stopadvisor.ground.printable import short_repr
from stopadvisor.ground.progress import tracked
from stopadvisor.policy.frozen import Policy
from stopadvisor.runs.storage import make_folder, no_follow
from stopadvisor.serving.monitoring import PromiseMonitor, WatchSettings, watch_settings

__all__ = ["AuditLog", "Series", "find_series", "replay", "reset"]

Series = tuple[Path, ...]
"""The files of one server, oldest first."""

_SCHEMA = 2
_NAME = re.compile(r"audit-([0-9a-f]{8})-0-([0-9]{6})\.jsonl")
"""File name, with the policy's digest and the file's number."""
_KINDS: dict[str, tuple[tuple[str, tuple[type, ...]], ...]] = {
    "request": (("id", (str,)), ("stop", (int, type(None)))),
    "result": (("id", (str,)), ("differs", (bool,))),
    "shed": (("id", (str,)),),
    "reset": (("by", (str,)),),
}
_OPTIONAL = ("tokens", "prompt_tokens", "first_logprob", "share", "stop")
_NUMBERS = (int, float)
_LARGEST = 1e12
"""Limit on the numbers in a record: a thousand times the seconds since 1970."""


# --- Lines ----------------------------------------------------------------------------------------


class _DuplicateField(ValueError):
    """A record has a field twice; JSON readers differ in which one they keep."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in names if names.count(name) > 1)
        raise _DuplicateField(f"field {short_repr(name)}: expected once, got it twice")
    return fields


def _refuse(name: str) -> None:
    raise ValueError(f"expected a finite number, got {name}")


# Shared by all lines: creating an encoder takes as long as using it.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode
_decode = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_unique).decode


def _line(record: Mapping[str, Any]) -> bytes:
    return _encode(record).encode() + b"\n"


def _parse(line: bytes) -> Any:
    """Parse one line; raise ValueError if it is not strict JSON."""
    try:
        return _decode(line.decode())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with open(path, "rb", opener=no_follow) as file:
            yield from enumerate(file, start=1)
    except OSError as error:
        raise PolicyError(f"{path}: cannot be read: {error.strerror}") from error


def _fault(record: Any) -> str | None:
    """Describe what is wrong with a record; None if nothing is."""
    time: Any = record.get("t") if type(record) is dict else None
    if type(time) not in _NUMBERS or not -_LARGEST < time < _LARGEST:
        return "expected a record with a time 't'"
    get = record.get
    kind = get("kind")
    fields = _KINDS.get(kind) if type(kind) is str else None
    if fields is None:
        return f"field 'kind': expected one of {', '.join(_KINDS)}"
    for name, types in fields:
        if type(get(name, fields)) not in types:
            return f"field {name!r}: expected {types[0].__name__}, got {short_repr(get(name))}"
    for name in _OPTIONAL:
        value = get(name)
        if value is not None and (type(value) not in _NUMBERS or not -_LARGEST < value < _LARGEST):
            return f"field {name!r}: expected a number, got {short_repr(value)}"
    if type(get("cut", False)) is not bool:
        return f"field 'cut': expected bool, got {short_repr(get('cut'))}"
    return None


# --- Reading --------------------------------------------------------------------------------------


def _read_header(path: Path) -> dict[str, Any]:
    for _, line in _lines(path):
        try:
            header: dict[str, Any] = _parse(line)
            WatchSettings(**header["settings"]).tests()  # checks the settings' ranges
            if header["kind"] == "header" and header["schema"] == _SCHEMA and "state" in header:
                return header
        except (ValueError, TypeError, KeyError, CalibrationError):
            pass
        break
    raise PolicyError(f"{path}, line 1: expected the header of an audit log of schema {_SCHEMA}")


def _records(series: Series, remarks: list[str]) -> Iterator[dict[str, Any]]:
    """Yield a server's records; skip torn lines with a remark.

    Refuses two different results for one request: only the first counts, so one inserted above the
    true one would hide a loss.  Raises `PolicyError` for these and for damaged records.
    """
    state = _read_header(series[0])["state"]
    opened = [] if state is None else state["processes"]["differs"]["open"]
    results: dict[str, bool | str | None] = {str(key).partition("/")[2]: None for key, *_ in opened}
    orphans = 0
    for path in series:
        for number, line in _lines(path):
            if number == 1 or line.isspace():
                continue
            try:
                record = _parse(line)
            except _DuplicateField as error:
                raise PolicyError(f"{path}, line {number}: {error}") from error
            except ValueError:
                remarks.append(f"{path}, line {number}: torn, left out")
                continue
            fault = _fault(record)
            if fault is None:
                kind, key = record["kind"], record.get("id")
                if kind == "request":
                    if record.get("share") is not None and record["stop"] is not None:
                        results.setdefault(key, None)
                elif kind == "result" and key not in results:
                    orphans += 1
                elif kind != "reset" and key in results:
                    result = record.get("differs", "shed")
                    if results[key] not in (None, result):
                        fault = f"field 'id': {short_repr(key)} has another result above"
                    results[key] = result
            if fault is not None:
                raise PolicyError(f"{path}, line {number}: {fault}")
            yield record
    if orphans:
        remarks.append(
            f"{series[0]}: results without a request that was to be audited, left out: {orphans}"
        )


def find_series(paths: Iterable[Path], digest: str) -> tuple[Series, ...]:
    """Find the logs of a policy among files and folders.

    Raises `PolicyError` if a path does not exist, a file is not named like a log, or all logs are
    of other policies.
    """
    by_folder: dict[Path, list[Path]] = {}
    others: list[Path] = []
    for path in paths:
        if not path.exists():
            raise PolicyError(f"{path}: no such file or directory")
        for file in path.iterdir() if path.is_dir() else [path]:
            name = _NAME.fullmatch(file.name)
            if name is None:
                if file == path:
                    raise PolicyError(
                        f"{path}: not named like an audit log, audit-DIGEST-0-NUMBER.jsonl; logs "
                        "of 0.1.0 are not read any more: begin in a new folder"
                    )
            elif name[1] == digest[:8]:
                by_folder.setdefault(file.parent, []).append(file)
            else:
                others.append(file)
    if others and not by_folder:
        raise PolicyError(f"{min(others)}: a log of another policy; this one is {digest[:8]}")
    return tuple(tuple(sorted(files)) for _, files in sorted(by_folder.items()))


def _merged(series: Sequence[Series], remarks: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield server numbers and records by time, keeping the order of each server's records."""

    def timed(number: int, one: Series) -> Iterator[tuple[float, int, dict[str, Any]]]:
        latest = 0.0
        for record in _records(one, remarks):
            latest = max(latest, float(record["t"]))
            yield latest, number, record

    streams = [timed(number, one) for number, one in enumerate(series)]
    for _, number, record in heapq.merge(*streams, key=lambda item: item[:2]):
        yield number, record


def replay(
    series: Sequence[Series],
    reference: Mapping[str, Sequence[float]] | None = None,
    *,
    gold: Mapping[str, tuple[bool, bool]] | None = None,
    policy: Policy | None = None,
) -> tuple[PromiseMonitor, tuple[str, ...]]:
    """Replay logs, merging several servers by time; return the monitor and remarks.

    `gold` is applied last.  With a `policy`, the logs must be about its promise.  Servers' clocks
    may differ: that reorders requests, but no request's time depends on its outcome, so the tests
    stay valid.

    Raises
    ------
    PolicyError
        A log is damaged, or was written under other settings than the first.
    """
    headers = [_read_header(one[0]) for one in series]
    settings = WatchSettings(**headers[0]["settings"])
    for one, header in zip(series, headers, strict=True):
        if WatchSettings(**header["settings"]) != settings:
            raise PolicyError(
                f"{one[0]}: written under other settings than {series[0][0]}: "
                "one test has one alpha, delta and audit share; give the logs one by one"
            )
    remarks: list[str] = []
    states = [header["state"] for header in headers if header["state"] is not None]
    if states:
        remarks.append(f"{len(states)} of {len(series)} logs begin later than their server did")
    if policy is not None:
        expected = replace(watch_settings(policy, share=settings.share), change=settings.change)
        for name, value in asdict(expected).items():
            if (logged := getattr(settings, name)) != value:
                raise PolicyError(
                    f"{series[0][0]}, line 1: expected the policy's own {name} ({value!r}), got "
                    f"{short_repr(logged)}"
                )
    monitor = PromiseMonitor.join(settings, states, reference)
    lines = sum(sum(1 for _ in _lines(path)) - 1 for one in series for path in one)
    for number, record in tracked("reading audits", _merged(series, remarks), lines):
        try:
            monitor.apply(record, str(number) if len(series) > 1 else "")
        except CalibrationError as error:
            raise PolicyError(f"the log in {series[number][0].parent}: {error}") from error
    if gold:
        monitor.settle(gold)
    return monitor, tuple(remarks)


# --- Writing --------------------------------------------------------------------------------------


_DAY = 86_400.0
_CHECK_SECONDS = 1.0
"""Seconds between checks that the log file is still in place."""


class AuditLog:
    """The log that one server writes; no two servers share a folder.

    At `max_bytes` a new file begins, and files last written over `keep_days` ago are deleted.  An
    existing log is continued: alarms stay on until they are reset, and unfinished audits are shed.

    Raises
    ------
    OutputError
        The folder cannot be written.
    PolicyError
        The existing log is damaged, or was written under other settings.
    """

    def __init__(
        self,
        folder: Path,
        settings: WatchSettings,
        reference: Mapping[str, Sequence[float]] | None = None,
        *,
        max_bytes: int = 64_000_000,
        keep_days: float = 90.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._clock = folder, clock
        self._settings, self._max_bytes, self._keep_days = settings, max_bytes, keep_days
        self._number, self._size, self._checked = 0, 0, 0.0
        make_folder(folder)
        self._close: Callable[[], object] = lambda: None
        self.monitor = PromiseMonitor(settings, reference)
        before = self._files()
        if not before:
            self._begin()
            return
        last = before[-1]
        header = _read_header(last)
        if WatchSettings(**header["settings"]) != settings:
            raise PolicyError(
                f"{last}: written under other settings; give the same --audit as before, or "
                "another --audit-log"
            )
        if header["state"] is not None:
            self.monitor = PromiseMonitor.restore(settings, header["state"])
        for record in _records((last,), []):
            self.monitor.apply(record)
        self._number = int(last.stem.rpartition("-")[2])
        self._open(last)
        if os.pread(self._file.fileno(), 1, max(self._size - 1, 0)) not in (b"", b"\n"):
            self._size = _write(self._file, b"\n", last)
        for key in self.monitor.processes["differs"].open_keys():
            self.write("shed", id=str(key).partition("/")[2])

    def write(self, kind: str, **fields: Any) -> None:
        """Write a record and apply it to the monitor."""
        record = {"kind": kind, "t": round(self._clock() * 1000) / 1000, **fields}
        self._append(record)
        self.monitor.apply(record)
        if self._size >= self._max_bytes:
            self._number += 1
            self._begin()
            oldest = self._clock() - self._keep_days * _DAY
            for path in self._files():
                if path != self._path and path.stat().st_mtime < oldest:
                    path.unlink()

    def take_in_resets(self) -> None:
        """Apply resets that `monitor --reset` wrote after our last line."""
        end = os.fstat(self._file.fileno()).st_size
        if end > self._size:  # else the next line finds that the file was emptied
            self._apply_resets(end)
            self._size = end

    def _files(self) -> list[Path]:
        """Return this policy's files, oldest first."""
        digits = 6 * "[0-9]"
        return sorted(self._folder.glob(f"audit-{self._settings.digest[:8]}-0-{digits}.jsonl"))

    def _begin(self) -> None:
        name = f"audit-{self._settings.digest[:8]}-0-{self._number:06d}.jsonl"
        self._open(self._folder / name)
        header = {
            "kind": "header",
            "t": round(self._clock(), 3),
            "schema": _SCHEMA,
            "settings": asdict(self._settings),
            "keep_days": self._keep_days,
            "state": self.monitor.state() if self._number else None,
        }
        try:
            self._append(header)
        except OutputError:  # without a header it would be refused; the next record begins it again
            self._path.unlink()
            self._number, self._checked = self._number - 1, 0.0
            raise

    def _open(self, path: Path) -> None:
        """Open a file and keep it open: opening takes longer than writing a line."""
        file = _opened(path)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):  # others: a file system without locks
                raise OutputError(
                    f"{path}: another server is writing it; each needs its own --audit-log"
                ) from error
        self._close()
        self._close = weakref.finalize(self, file.close)
        self._path, self._file = path, file
        self._size = os.fstat(file.fileno()).st_size

    def _append(self, record: Mapping[str, Any]) -> None:
        data = _line(record)
        if not 0 <= record["t"] - self._checked < _CHECK_SECONDS:
            self._check_in_place()
            self._checked = record["t"]
        end = _write(self._file, data, self._path)
        if end < self._size + len(data):  # logrotate's copytruncate: as if the file was removed
            self._path.unlink()
            self._check_in_place()
            end = _write(self._file, data, self._path)
        # `monitor --reset` may have written lines before ours.
        if end > self._size + len(data):
            self._apply_resets(end - len(data))
        self._size = end

    def _check_in_place(self) -> None:
        """Check that the open file is still the one at its path."""
        try:
            found = os.lstat(self._path)
            if os.path.samestat(found, os.fstat(self._file.fileno())):
                return
            if found.st_size or not stat.S_ISREG(found.st_mode):
                raise OutputError(f"cannot write {self._path}: another file was put in its place")
            self._path.unlink()  # logrotate's create
        except FileNotFoundError:  # removed: the next file's header has the state
            pass
        self._number += 1
        self._begin()

    def _apply_resets(self, end: int) -> None:
        added = os.pread(self._file.fileno(), max(end - self._size, 0), self._size)
        for line in added.splitlines():
            try:
                record = _parse(line)
            except ValueError:
                continue  # reported when the log is replayed
            if isinstance(record, dict) and record.get("kind") == "reset":
                self.monitor.apply(record)


def _opened(path: Path) -> io.FileIO:
    try:
        return open(path, "ab+", buffering=0, opener=no_follow)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error


def _write(file: io.FileIO, data: bytes, path: Path) -> int:
    """Append a line in one write, whole or not at all; return the position of its end."""
    try:
        written = file.write(data)
        end = file.tell()
        if written != len(data):  # the disk is full: remove the partial line
            file.truncate(end - written)
            raise OutputError(f"cannot write {path}: no space left")
        return end
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error


def reset(series: Sequence[Series], by: str) -> None:
    """Reset the alarms of each log, and record by whom; running servers notice."""
    if not by.strip() or not by.isprintable():
        raise PolicyError("--reset needs a name in printable characters")
    for one in series:
        with _opened(one[-1]) as file:
            _write(file, _line({"kind": "reset", "t": round(time.time(), 3), "by": by}), one[-1])
