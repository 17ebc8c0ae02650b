"""The filter for printed text: characters that could steer a terminal become escapes.

Names, ids and messages come from files, models and servers, which are not trusted.
"""

from __future__ import annotations

import json
import re
import reprlib

__all__ = ["csv_cell", "json_safe", "printable", "short_repr"]

_NEGATIVE = re.compile(r"-\d+(\.\d+)?(e[+-]?\d+)?")
"""A negative number in a table, such as a threshold of -0.4761: not a formula."""

_CONTROL = (*range(0x20), *range(0x7F, 0xA0))
# Bidirectional marks, by which a name could look like another, and line separators.
_REORDERING = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x2028, 0x2029)
# Invisible characters: different names would look alike, and tags can hide whole sentences.  The
# two joiners (U+200C, U+200D) are kept, because Persian, Indic scripts and emoji need them.
_UNSEEN = (
    *(0xAD, 0x61C, 0x180E, 0x200B, 0xFEFF),
    *range(0x2060, 0x2065), *range(0x206A, 0x2070), *range(0xFFF9, 0xFFFC),
    *range(0xE0000, 0xE0080), *range(0xE0100, 0xE01F0),
)  # fmt: skip
# Lone surrogates, which have no UTF-8, and code points that XML forbids.
_NO_LETTERS = (*range(0xD800, 0xE000), 0xFFFE, 0xFFFF)
_NEVER = (*_REORDERING, *_UNSEEN, *_NO_LETTERS)


def _escape(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_ESCAPES = {code: _escape(code) for code in (*_CONTROL, *_NEVER) if chr(code) not in "\n\t"}
_JSON_ESCAPES = {
    code: f"\\u{code:04x}" if code < 0x10000 else json.dumps(chr(code))[1:-1]
    for code in (*range(0x7F, 0xA0), *_NEVER)
}

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_MOST_SHOWN = 240
_SHORT.maxlist = _SHORT.maxdict = _SHORT.maxlevel = 4


def printable(text: str) -> str:
    """Escape controls, reordering marks and invisible characters; line feeds and tabs stay."""
    return text.translate(_ESCAPES)


def json_safe(text: str) -> str:
    """Do the same in JSON text, which stays JSON; `json.dumps` has escaped all below a space."""
    return text.translate(_JSON_ESCAPES)


def short_repr(value: object) -> str:
    """Shorten a value to one line for an error message."""
    text = " ".join(_SHORT.repr(value).split())
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def csv_cell(value: object) -> object:
    """Quote a text that a spreadsheet would read as a formula; numbers stay numbers."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    if text[:1] not in ("=", "+", "-", "@", "\t"):
        return text
    return text if _NEGATIVE.fullmatch(text) else f"'{text}"
