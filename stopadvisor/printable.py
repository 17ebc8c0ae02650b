"""The one filter for text that is printed: what a terminal would obey is written as an escape.

Names, ids and messages come from files, models and servers.  Knows no terminal and no document.
"""

from __future__ import annotations

import re

__all__ = ["csv_cell", "json_safe", "printable"]

_NEGATIVE = re.compile(r"-\d+(\.\d+)?(e[+-]?\d+)?")
"""A number as tables write it, such as a threshold of -0.4761: no formula."""

_CONTROL = (*range(0x20), *range(0x7F, 0xA0))
# Marks that reorder the line around them: a name could show another name.
_REORDERING = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x2028, 0x2029)
_ESCAPES = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*_CONTROL, *_REORDERING)
    if chr(code) not in "\n\t"
}
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), *_REORDERING)}


def printable(text: str) -> str:
    """Escape control characters and marks that reorder text; line feeds and tabs stay."""
    return text.translate(_ESCAPES)


def json_safe(text: str) -> str:
    """Do the same to JSON, which escapes all below the space by itself, and keep it JSON."""
    return text.translate(_JSON_ESCAPES)


def csv_cell(value: object) -> object:
    """Quote a text that a spreadsheet would take for a formula; numbers stay numbers."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    if text[:1] not in ("=", "+", "-", "@", "\t"):
        return text
    return text if _NEGATIVE.fullmatch(text) else f"'{text}"
