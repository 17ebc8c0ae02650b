"""Policy files as bytes: decoded with distrust, encoded plainly.

A policy file is a pickle (what `joblib.dump` writes, uncompressed) or JSON, and holds plain values
only.  Sizes are checked before anything of that size is read or built.  Knows no field of a policy.
"""

from __future__ import annotations

import io
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from stopadvisor.errors import PolicyError
from stopadvisor.policy.opcodes import decode_pickle
from stopadvisor.policy.values import MAX_BYTES, MAX_CONTAINERS, MAX_DEPTH, MAX_ELEMENTS
from stopadvisor.printable import short_repr

__all__ = ["Format", "decode", "encode", "read_bytes"]

Format = Literal["joblib", "json"]

_MAX_WIDE_JSON = 2 * 2**20
"""Largest JSON with letters beyond ASCII, of which one makes the text four times as large here."""
_MAX_ESCAPED_JSON = 6 * 2**20
"""Largest JSON with escapes, of which one does the same to the text that it stands in."""
_PICKLE_PROTOCOL = 4  # pinned, so that every Python writes the same bytes

_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x5d\x00\x00": "lzma",
    b"\x04\x22\x4d\x18": "lz4",
    b"\x28\xb5\x2f\xfd": "zstandard",
    b"PK\x03\x04": "zip",
    b"ZF": "joblib's old zlib format",
    b"\x78\x01": "zlib",
    b"\x78\x5e": "zlib",
    b"\x78\x9c": "zlib",
    b"\x78\xda": "zlib",
}


# --- Reading --------------------------------------------------------------------------------------


def read_bytes(path: Path, *, what: str = "policy", most: int = MAX_BYTES) -> bytes:
    """Read a regular file of at most `most` bytes; a larger one is not read at all.

    Raises
    ------
    PolicyError
        No such file, not a regular file, too large, or unreadable.
    """
    try:
        # Without O_NONBLOCK a named pipe would make the open wait for ever.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        handle = os.open(path, flags)
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise PolicyError(f"a {what} must be a regular file")
            if found.st_size > most:
                raise PolicyError(
                    f"a {what} has at most {most} bytes, this file has {found.st_size}"
                )
            with open(handle, "rb", closefd=False) as file:
                return file.read(found.st_size)  # one that grows meanwhile is read cut off
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

    The values still have to pass `check_plain`.

    Raises
    ------
    PolicyError
        Compressed, damaged, of another format, or holding anything but one dict of plain values.
    """
    if data[:1] == b"\x80":
        content = decode_pickle(data)
    elif data.lstrip(b" \t\r\n")[:1] == b"{":
        content = _parse_json(_json_text(data))
    else:
        for magic, name in _COMPRESSED.items():
            if data.startswith(magic):
                raise PolicyError(f"the file is compressed ({name}); a policy is not")
        raise PolicyError(
            f"not a policy: neither an uncompressed joblib file nor JSON, starts with {data[:8]!r}"
        )
    if type(content) is not dict:
        raise PolicyError(f"a policy is one dict, got {type(content).__name__}")
    return content


def _json_text(data: bytes) -> str:
    # Upper limits on the values, taken before any is made.
    containers = data.count(b"[") + data.count(b"{")
    if containers > MAX_CONTAINERS:
        raise PolicyError(f"a policy holds at most {MAX_CONTAINERS} lists and dicts, this one more")
    if data.count(b",") + containers > MAX_ELEMENTS:
        raise PolicyError(f"a policy holds at most {MAX_ELEMENTS} values, this one more")
    if len(data) > _MAX_WIDE_JSON and not data.isascii():
        raise PolicyError(
            f"JSON of more than {_MAX_WIDE_JSON} bytes is written in ASCII, with escapes"
        )
    if len(data) > _MAX_ESCAPED_JSON and b"\\" in data:
        raise PolicyError(f"JSON of more than {_MAX_ESCAPED_JSON} bytes has no escapes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PolicyError(f"damaged JSON: {short_repr(str(error))}") from error


def _parse_json(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise PolicyError(f"key {short_repr(key)} appears twice")
            found[key] = value
        return found

    def refuse(constant: str) -> None:
        raise PolicyError(f"numbers must be finite, got {constant}")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except RecursionError as error:
        raise PolicyError(f"a policy may nest at most {MAX_DEPTH} levels deep") from error
    except ValueError as error:  # bad JSON, integers of thousands of digits
        raise PolicyError(f"damaged JSON: {short_repr(str(error))}") from error


# --- Writing --------------------------------------------------------------------------------------


def encode(content: Mapping[str, Any], format: Format) -> bytes:
    """Give the bytes of a policy file: a joblib file without compression, or JSON."""
    if format == "json":
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        data = text.encode()
        if len(data) > _MAX_WIDE_JSON and not text.isascii():
            data = (json.dumps(content, indent=1) + "\n").encode()
        return data
    if format != "joblib":
        raise PolicyError(f"format must be 'joblib' or 'json', got {format!r}")
    import joblib

    buffer = io.BytesIO()
    joblib.dump(dict(content), buffer, compress=0, protocol=_PICKLE_PROTOCOL)
    return buffer.getvalue()
