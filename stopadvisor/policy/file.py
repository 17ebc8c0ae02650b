"""Policy files as bytes: one JSON text, read without trusting it, and written to be diffed.

``policy.json`` is the text; ``policy.joblib`` is a pickle of that one string, which `joblib.load`
reads anywhere.  Nothing is unpickled here, and sizes are checked before anything large is built.
This module knows only the fields ``schema`` and ``digest``.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.printable import short_repr

__all__ = [
    "MAX_BYTES", "NO_DIGEST", "POLICY_SCHEMA", "Format", "decode", "encode_policy", "read_bytes",
    "sealed",
]  # fmt: skip

Format = Literal["joblib", "json"]

POLICY_SCHEMA = 3
"""Version of a policy's fields, raised when their meaning changes."""

MAX_BYTES = 8 * 2**20
"""Limit on a policy file's bytes: room for the hashed ids of 50,000 questions."""
MAX_ELEMENTS = 250_000
"""Limit on the number of values."""
MAX_CONTAINERS = 50_000
"""Limit on the number of lists and dicts; each takes as much memory as ten numbers."""
MAX_TEXT = 2**20
"""Limit on the bytes of one string."""
_MAX_WIDE = 2 * 2**20
"""Limit on the bytes of all strings with escapes: a single wide character makes Python store a
string in up to four bytes a character."""

NO_DIGEST = "0" * 64
"""Placeholder for the digest until it is computed."""
_LINE = 100
"""Line width: a list or dict that fits is written on one line."""


# --- Reading --------------------------------------------------------------------------------------


def read_bytes(path: Path, *, what: str = "policy", most: int = MAX_BYTES) -> bytes:
    """Read a regular file of at most `most` bytes; a larger one is not read at all.

    Raises
    ------
    PolicyError
        No such file, not a regular file, too large, or unreadable.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe would wait forever.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        handle = os.open(path, flags)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise PolicyError(f"a {what} must be a regular file")
            if status.st_size > most:
                raise PolicyError(
                    f"a {what} has at most {most} bytes, this file has {status.st_size}"
                )
            with open(handle, "rb", closefd=False) as file:
                return file.read(status.st_size)  # a file that grows meanwhile is read truncated
        finally:
            os.close(handle)
    except FileNotFoundError as error:
        raise PolicyError(f"no such {what} file") from error
    except OSError as error:
        raise PolicyError(f"cannot read the {what}: {error.strerror}") from error
    except ValueError as error:  # a null byte in the path
        raise PolicyError(f"cannot read the {what}: {error}") from error


def decode(data: bytes) -> dict[str, Any]:
    """Turn a file's bytes into one dict of plain values, or refuse them.

    Raises
    ------
    PolicyError
        The file is compressed, damaged, of another schema or format, changed after it was written,
        or too large or too deeply nested to read in little memory.
    """
    text = _text_of(data)
    head = _HEAD.match(text)
    if head is None:
        raise PolicyError(
            "not a policy: neither an uncompressed joblib file of one text nor JSON that begins "
            f'with "schema", starts with {bytes(data[:8])!r}'
        )
    _check_schema(int(head["schema"]))
    start, end = head.span("digest")
    if start < 0:
        raise PolicyError('damaged JSON: expected "digest" after "schema"')
    if head["digest"].decode() != _digest(text[:start], text[end:]):
        raise PolicyError(
            "the digest does not match the content: the policy was changed or damaged "
            "after it was built"
        )
    return _parsed(text)


_PICKLED = re.compile(rb"\x80[\x04\x05](?:\x95.{8})?X(?P<size>.{4})", re.DOTALL)
_PICKLE_END = re.compile(rb"(?:\x95.{8})?\x94\.", re.DOTALL)
_HEAD = re.compile(
    rb'\s*\{\s*"schema":\s*(?P<schema>\d{1,9})\b(?:\s*,\s*"digest":\s*"(?P<digest>[0-9a-f]{64})")?'
)


def _text_of(data: bytes) -> memoryview:
    """The JSON text of a file in either format; the only pickle accepted is that of one string."""
    view = memoryview(data)
    if data[:1] != b"\x80":
        return view
    pickled = _PICKLED.match(data)
    if pickled is None:
        raise PolicyError(
            "refused: a joblib file of a policy is a pickle of one text and of nothing else; "
            f"{_BEFORE}"
        )
    start = pickled.end()
    end = start + int.from_bytes(pickled["size"], "little")
    if end > len(data):
        raise PolicyError("damaged or truncated pickle: its text extends past the end of the file")
    if _PICKLE_END.fullmatch(data, end) is None:
        raise PolicyError("damaged pickle: something follows its text")
    return view[start:end]


_BEFORE = (
    "policies of schema 1 and 2 are not read any more: assess the workload again, in a folder "
    "without old runs, and calibrate it"
)


def _check_schema(schema: int) -> None:
    if schema > POLICY_SCHEMA:
        raise PolicyError(
            f"written by a newer StopAdvisor (policy schema {schema}; this version reads "
            f"{POLICY_SCHEMA}): upgrade with pip install -U stopadvisor"
        )
    if schema < POLICY_SCHEMA:
        raise PolicyError(f"field 'schema': expected {POLICY_SCHEMA}, got {schema}; {_BEFORE}")


def _digest(before: bytes | memoryview, after: bytes | memoryview) -> str:
    hashed = hashlib.sha256(before)
    hashed.update(NO_DIGEST.encode())
    hashed.update(after)
    return hashed.hexdigest()


def _parsed(view: memoryview) -> dict[str, Any]:
    """Parse a text with the right digest, after checking that its values fit into memory."""
    text = str(view, "latin-1")  # one byte per character
    if not text.isascii():
        raise PolicyError("a policy is written in ASCII, with escapes")
    # Upper limits on the number of values, before any is built.
    containers = text.count("[") + text.count("{")
    if containers > MAX_CONTAINERS:
        raise PolicyError(f"a policy has at most {MAX_CONTAINERS} lists and dicts, this one more")
    if text.count(",") + containers > MAX_ELEMENTS:
        raise PolicyError(f"a policy has at most {MAX_ELEMENTS} values, this one more")
    _check_strings(text)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise PolicyError(f"key {short_repr(twice)} appears twice")
        return entries

    def refuse(constant: str) -> None:
        raise PolicyError(f"numbers must be finite, got {constant}")

    try:
        content = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except RecursionError as error:
        raise PolicyError("lists and dicts are nested too deep for a policy") from error
    except ValueError as error:  # bad JSON, or integers of thousands of digits
        raise PolicyError(f"damaged JSON: {short_repr(str(error))}") from error
    assert type(content) is dict  # the text begins with "{"
    return content


_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def _check_strings(text: str) -> None:
    """Refuse large strings; one without escapes takes no more memory than in the file."""
    if len(text) <= MAX_TEXT:
        return
    wide = 0
    for string in _STRING.finditer(text):
        start, end = string.span()
        if end - start - 2 > MAX_TEXT:
            raise PolicyError(
                f"a text in a policy has at most {MAX_TEXT} bytes, one has {end - start - 2}"
            )
        if text.find("\\", start, end) >= 0:
            wide += end - start
    if wide > _MAX_WIDE:
        raise PolicyError(f"texts with escapes have at most {_MAX_WIDE} bytes in all, got {wide}")


# --- Writing --------------------------------------------------------------------------------------


def sealed(content: Mapping[str, Any]) -> tuple[str, str]:
    """Return a policy's JSON text with its digest, and the digest.

    The digest is SHA-256 over the text with 64 zeros in its place.  It detects damage but is no
    signature.  Readers hash the text as it is, so they need not format numbers as this writer does.
    """
    first = {"schema": POLICY_SCHEMA, "digest": NO_DIGEST}
    rest = {key: value for key, value in content.items() if key not in first}
    text = _written({**first, **rest}, 0) + "\n"
    before, _, after = text.partition(NO_DIGEST)
    digest = _digest(before.encode("ascii"), after.encode("ascii"))
    return before + digest + after, digest


def _written(value: Any, indent: int) -> str:
    """JSON of a value: on one line if it fits, else one entry per line."""
    if isinstance(value, dict):
        ends = "{}"
        parts = [f"{json.dumps(key)}: {_written(item, indent + 1)}" for key, item in value.items()]
    elif isinstance(value, list):
        ends = "[]"
        parts = [_written(item, indent + 1) for item in value]
    else:
        return json.dumps(value, allow_nan=False)
    line = ", ".join(parts)
    if indent and indent + len(line) < _LINE and "\n" not in line:
        return ends[0] + line + ends[1]
    margin = "\n" + " " * indent
    return ends[0] + margin + " " + f",{margin} ".join(parts) + margin + ends[1]


def encode_policy(text: str, format: Format) -> bytes:
    """Bytes of a policy file: the text, or an uncompressed pickle of it."""
    if format == "json":
        return text.encode("ascii")
    if format != "joblib":
        raise PolicyError(f"format must be 'joblib' or 'json', got {format!r}")
    import joblib

    buffer = io.BytesIO()
    joblib.dump(text, buffer, compress=0, protocol=4)  # fixed, so every Python writes the same
    return buffer.getvalue()
