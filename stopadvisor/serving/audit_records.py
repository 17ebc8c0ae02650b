"""One line of an audit log: how it is written, and what may stand in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stopadvisor.ground.errors import CalibrationError, PolicyError
from stopadvisor.ground.printable import short_repr
from stopadvisor.runs.storage import no_follow
from stopadvisor.serving.watch_settings import WatchSettings

__all__ = [
    "SCHEMA", "Said", "count_records", "parse_record", "read_header", "read_records", "record_line"
]  # fmt: skip

SCHEMA = 2

_KINDS: dict[str, tuple[tuple[str, tuple[type, ...]], ...]] = {
    "request": (("id", (str,)), ("stop", (int, type(None)))),
    "result": (("id", (str,)), ("differs", (bool,))),
    "shed": (("id", (str,)),),
    "gold": (("id", (str,)), ("served", (bool,)), ("full", (bool,))),
    "reset": (("by", (str,)),),
}
_OPTIONAL = ("tokens", "prompt_tokens", "first_logprob", "share", "stop")
_NUMBERS = (int, float)
_LARGEST = 1e12
"""Of any number in a record: a thousand times the seconds since 1970."""


def _refuse(name: str) -> None:
    raise ValueError(f"expected a finite number, got {name}")


class _Twice(ValueError):
    """A field stands twice in a record, and readers differ in which of them they take."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in names if names.count(name) > 1)
        raise _Twice(f"field {short_repr(name)}: expected once, got it twice")
    return found


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


def read_header(path: Path) -> dict[str, Any]:
    """The first line of a log."""
    for _, line in _lines(path):
        try:
            header = parse_record(line)
            settings = WatchSettings(**header["settings"])
            settings.tests()  # refuses what is no number, or out of range
            if header["kind"] == "header" and header["schema"] == SCHEMA and "state" in header:
                return dict(header)
        except (ValueError, TypeError, KeyError, CalibrationError):
            break
        break
    raise PolicyError(f"{path}, line 1: expected the header of an audit log of schema {SCHEMA}")


class Said:
    """What a replica's log has said of each audit: nothing is taken back by a later line.

    A forged result before the true one would hide a loss, because only the first counts.

    Parameters
    ----------
    header : mapping
        Of the first file; audits that were open when it was begun are known.
    """

    def __init__(self, header: Mapping[str, Any]) -> None:
        state = header["state"]
        opened = [] if state is None else state["processes"]["differs"]["open"]
        self._results: dict[str, bool | str | None] = {
            str(key).partition("/")[2]: None for key, *_ in opened
        }
        self._gold: dict[str, tuple[bool, bool]] = {}
        self.orphans = 0
        """Results without a request that was to be audited."""

    def fault(self, record: Mapping[str, Any]) -> str | None:
        """Take note of a checked record; says what is wrong where it contradicts another."""
        kind = record["kind"]
        key: Any = record.get("id")  # a string in the records that are looked at here
        if kind == "request" and record.get("share") is not None and record["stop"] is not None:
            self._results.setdefault(key, None)
        elif kind == "result" and key not in self._results:
            self.orphans += 1
        elif kind in ("result", "shed") and key in self._results:
            said = record.get("differs", "shed")
            if self._results[key] not in (None, said):
                return f"field 'id': {short_repr(key)} has another result above"
            self._results[key] = said
        elif kind == "gold":
            grades = record["served"], record["full"]
            if self._gold.setdefault(key, grades) != grades:
                return f"field 'id': {short_repr(key)} has other gold above"
        return None


def read_records(path: Path, remarks: list[str], said: Said) -> Iterator[dict[str, Any]]:
    """What follows the header; a torn line is left out and said in the remarks.

    Raises
    ------
    PolicyError
        A record is damaged, or contradicts what was `said` above or in files before.
    """
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
        fault = _fault(record) or said.fault(record)
        if fault is not None:
            raise PolicyError(f"{path}, line {number}: {fault}")
        yield record


def count_records(path: Path) -> int:
    """How many lines follow the header."""
    return sum(1 for _ in _lines(path)) - 1


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
