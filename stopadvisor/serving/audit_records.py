"""What an audit log says: its lines, its header, and the records of several servers in order.

A folder holds one series of files for each policy and replica, `audit-DIGEST-REPLICA-NUMBER.jsonl`.
The first line of a file is its header: the settings, and where the series stood when the file was
begun, so that a deleted file takes no evidence along.  Then one line for each covered request, for
each result of an audit, and for each reset after an alarm.  Reads only; `audit_log` writes.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stopadvisor.ground.errors import CalibrationError, PolicyError
from stopadvisor.ground.printable import short_repr
from stopadvisor.runs.storage import no_follow
from stopadvisor.serving.watch_settings import WatchSettings

__all__ = [
    "LOG_NAME", "SCHEMA", "Series", "count_records", "find_series", "log_number", "merged",
    "parse_record", "read_header", "read_series", "record_line",
]  # fmt: skip

SCHEMA = 2
LOG_NAME = re.compile(r"audit-([0-9a-f]{8})-([A-Za-z0-9_.]{1,64})-([0-9]{6})\.jsonl")
"""Name of a file: the policy's digest, the replica, the file's number."""

_KINDS: dict[str, tuple[tuple[str, tuple[type, ...]], ...]] = {
    "request": (("id", (str,)), ("stop", (int, type(None)))),
    "result": (("id", (str,)), ("differs", (bool,))),
    "shed": (("id", (str,)),),
    "reset": (("by", (str,)),),
}
_OPTIONAL = ("tokens", "prompt_tokens", "first_logprob", "share", "stop")
_NUMBERS = (int, float)
_LARGEST = 1e12
"""Of any number in a record: a thousand times the seconds since 1970."""


@dataclass(frozen=True)
class Series:
    """The files of one replica, oldest first."""

    replica: str
    files: tuple[Path, ...]


# --- Lines ----------------------------------------------------------------------------------------


class _Twice(ValueError):
    """A field stands twice in a record, and readers differ in which of them they take."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in names if names.count(name) > 1)
        raise _Twice(f"field {short_repr(name)}: expected once, got it twice")
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"expected a finite number, got {name}")


# One for all lines: making them takes as long as using them.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode
_decode = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_once).decode


def record_line(record: Mapping[str, Any]) -> bytes:
    """Return what is written for a record."""
    return _encode(record).encode() + b"\n"


def parse_record(line: bytes) -> Any:
    """Parse one line of JSON; ValueError where it is none, or as nobody writes it."""
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
    """What is wrong with a record; None where nothing is."""
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
    return None


# --- One replica ----------------------------------------------------------------------------------


def read_header(path: Path) -> dict[str, Any]:
    """Read the first line of a log; its settings are those of a test."""
    for _, line in _lines(path):
        try:
            header: dict[str, Any] = parse_record(line)
            WatchSettings(**header["settings"]).tests()  # refuses what is no number, or no limit
            if header["kind"] == "header" and header["schema"] == SCHEMA and "state" in header:
                return header
        except (ValueError, TypeError, KeyError, CalibrationError):
            pass
        break
    raise PolicyError(f"{path}, line 1: expected the header of an audit log of schema {SCHEMA}")


def read_series(series: Series, remarks: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the records of a replica; torn lines are left out and said in the remarks.

    Nothing is taken back by a later line: a forged result before the true one would hide a loss,
    because only the first counts.

    Raises
    ------
    PolicyError
        A record is damaged, or contradicts one above.
    """
    state = read_header(series.files[0])["state"]
    opened = [] if state is None else state["processes"]["differs"]["open"]
    results: dict[str, bool | str | None] = {str(key).partition("/")[2]: None for key, *_ in opened}
    orphans = 0
    for path in series.files:
        for number, line in _lines(path):
            if number == 1 or line.isspace():
                continue
            try:
                record = parse_record(line)
            except _Twice as error:
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
                    said = record.get("differs", "shed")
                    if results[key] not in (None, said):
                        fault = f"field 'id': {short_repr(key)} has another result above"
                    results[key] = said
            if fault is not None:
                raise PolicyError(f"{path}, line {number}: {fault}")
            yield record
    if orphans:
        remarks.append(
            f"{series.files[0]}: results without a request that was to be audited, left out: "
            f"{orphans}"
        )


def count_records(series: Sequence[Series]) -> int:
    """How many lines follow the headers."""
    return sum(sum(1 for _ in _lines(path)) - 1 for one in series for path in one.files)


# --- Several replicas -----------------------------------------------------------------------------


def log_number(path: Path) -> int:
    """Return the number in a log's name."""
    return int(path.stem.rpartition("-")[2])


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
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            name = LOG_NAME.fullmatch(file.name)
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
        Series(str(folder / name) if several else name, tuple(sorted(files, key=log_number)))
        for (folder, name), files in sorted(found.items())
    )


def merged(series: Sequence[Series], remarks: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield replicas' names and records, in the order of their times; a replica keeps its own."""

    def timed(number: int, one: Series) -> Iterator[tuple[float, int, dict[str, Any]]]:
        latest = 0.0
        for record in read_series(one, remarks):
            latest = max(latest, float(record["t"]))
            yield latest, number, record

    streams = [timed(number, one) for number, one in enumerate(series)]
    for _, number, record in heapq.merge(*streams, key=lambda item: item[:2]):
        yield series[number].replica, record
