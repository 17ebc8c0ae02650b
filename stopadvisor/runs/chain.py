"""A hash chain of entries in a JSON file, and the note of its head in the run that it belongs to.

Every entry holds the digest of the one before it, so that none can be changed, taken out or put in
without changing all that follow.  The last digest, the head, is noted in the manifest of the run
(an archive's: in ``archive.json``); a chain that was taken away or put back to an earlier state
does not hold that head.  Knows no look.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stopadvisor.errors import CalibrationError, ProbeError
from stopadvisor.json_text import parse_json
from stopadvisor.runs.directory import MANIFEST
from stopadvisor.runs.storage import write_json_atomically

__all__ = [
    "ARCHIVE",
    "CHAINED",
    "Entry",
    "extend",
    "head_of",
    "noted_head",
    "read_chain",
    "timestamp",
    "write_chain",
]

ARCHIVE = "archive.json"
"""In the results folder of an archive: which file it is about."""
CHAINED = 2
"""``schema`` of a file that holds a chain; before it there was none."""

Entry = Mapping[str, Any]

_NOTE = "ledger_head"
_GENESIS = "0" * 64


def timestamp() -> str:
    """Say what time it is, in ISO 8601; ``SOURCE_DATE_EPOCH`` rules it where it is set.

    Raises
    ------
    CalibrationError
        ``SOURCE_DATE_EPOCH`` is no number of seconds.
    """
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        return datetime.now(UTC).isoformat(timespec="seconds")
    try:
        return datetime.fromtimestamp(int(given), UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError) as error:
        raise CalibrationError(
            f"SOURCE_DATE_EPOCH must be whole seconds since 1970, got {given!r}"
        ) from error


# --- The chain ------------------------------------------------------------------------------------


def head_of(entries: Sequence[Entry]) -> str | None:
    """Digest of the last entry; None for a chain without one."""
    return entries[-1]["digest"] if entries else None


def extend(entries: Sequence[Entry], bodies: Iterable[Entry]) -> list[Entry]:
    """Link further entries to a chain; `bodies` hold JSON values and neither digest."""
    found = list(entries)
    for body in bodies:
        linked = {**parse_json(json.dumps(body)), "previous": head_of(found) or _GENESIS}
        found.append({**linked, "digest": _digest(linked)})
    return found


def read_chain(path: Path, content: Mapping[str, Any]) -> list[Entry]:
    """Entries of a file's content, once every link was checked.

    Raises
    ------
    ProbeError
        An entry was changed, put in or taken out.
    """
    previous, entries = _GENESIS, content["entries"]
    for number, entry in enumerate(entries, start=1):
        body = {key: value for key, value in entry.items() if key != "digest"}
        if (body["previous"], entry["digest"]) != (previous, _digest(body)):
            raise ProbeError(
                f"{path}: entry {number} of the ledger of looks is not as it was written: an entry "
                "was changed, put in or taken out; put the file back as it was"
            )
        previous = entry["digest"]
    return list(entries)


def _digest(body: Entry) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


# --- Files ----------------------------------------------------------------------------------------


def write_chain(path: Path, entries: Sequence[Entry]) -> None:
    """Write a chain, then its head into the run that it lies in.

    A process killed between the two leaves the note of an earlier head, which the chain holds too.
    """
    write_json_atomically(path, {"schema": CHAINED, "entries": list(entries)})
    note = _note(path.parent)
    if note is not None:
        write_json_atomically(note, {**_content(note), _NOTE: head_of(entries)})


def noted_head(folder: Path) -> str | None:
    """Head of the chain as a run notes it; None where it never had an entry."""
    note = _note(folder)
    head = None if note is None else _content(note).get(_NOTE)
    if not isinstance(head, str | None):
        raise ProbeError(f"{note}: field '{_NOTE}': expected text, got {head!r:.60}")
    return head


def _note(folder: Path) -> Path | None:
    found = (folder / name for name in (MANIFEST, ARCHIVE))
    return next((path for path in found if path.exists()), None)


def _content(note: Path) -> dict[str, Any]:
    try:
        return dict(parse_json(note.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise ProbeError(f"{note}: cannot read: {error}") from error
