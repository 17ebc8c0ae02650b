"""Checks of plain values, put together from small ones; each says in words what it expects.

Written by hand instead of jsonschema: the relations between fields (lengths, thresholds, trees)
need code anyway, and who loads a policy needs nothing installed.  Knows no field of a policy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stopadvisor.errors import PolicyError
from stopadvisor.printable import short_repr

__all__ = [
    "LINE",
    "MOST_TOKENS",
    "NAME",
    "SHARE",
    "SHARE_OR_END",
    "FieldCheck",
    "expect",
    "list_of",
    "map_of",
    "matching",
    "nullable",
    "on_one_line",
    "one_of",
    "record",
    "tokens",
    "where",
    "whole",
]


@dataclass(frozen=True)
class FieldCheck:
    """A check that refuses a value with a message naming its field."""

    expected: str
    """What passes, in words."""
    run: Callable[[Any, str], None]
    parts: tuple[tuple[str, FieldCheck], ...] = ()
    """Checks of the values inside, each with the suffix that the field's name gets for it."""
    meaning: str = ""
    """What the value is for; the field table of policy/README.md is made of these."""
    holds: Callable[[Any], bool] | None = None
    """The whole check, where it is one condition; long lists are checked by it quickly."""

    def means(self, text: str) -> FieldCheck:
        """Give the same check with a meaning."""
        return replace(self, meaning=text)

    def __call__(self, value: Any, name: str) -> None:
        """Refuse `value` if it is not what is expected of the field `name`."""
        self.run(value, name)


def expect(ok: bool, name: str, expected: str, value: Any) -> None:
    """Refuse a field's value unless `ok`."""
    if not ok:
        raise PolicyError(f"field '{name}': expected {expected}, got {short_repr(value)}")


def where(expected: str, holds: Callable[[Any], bool]) -> FieldCheck:
    """A check that something holds."""
    return FieldCheck(
        expected, lambda value, name: expect(holds(value), name, expected, value), holds=holds
    )


def one_of(*options: str | None) -> FieldCheck:
    """A check for one of these texts, or null where it is among them."""
    expected = "one of " + ", ".join("null" if o is None else repr(o) for o in options)
    return where(expected, lambda value: type(value) in (str, type(None)) and value in options)


def matching(pattern: str, expected: str) -> FieldCheck:
    """A check for a text that matches as a whole."""
    return where(expected, lambda value: type(value) is str and bool(re.fullmatch(pattern, value)))


def whole(at_least: int, at_most: int | None = None) -> FieldCheck:
    """A check for an integer."""
    if at_most is None:
        return where(f"an integer >= {at_least}", lambda v: type(v) is int and v >= at_least)
    return where(
        f"an integer from {at_least} to {at_most}",
        lambda v: type(v) is int and at_least <= v <= at_most,
    )


def tokens(at_least: int) -> FieldCheck:
    """A check for a number of tokens, or the id of one: below any model's reach it is a mistake."""
    return whole(at_least, MOST_TOKENS)


NAME = where("a non-empty string", lambda value: type(value) is str and bool(value))
MOST_TOKENS = 2**24
"""Of a prompt, a trace or a vocabulary: 16 times the longest context of any model today."""

_BREAKS = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
LINE = where(
    "a non-empty string on one line",
    lambda value: type(value) is str and bool(value) and not _BREAKS.search(value),
)
SHARE = where(
    "a float strictly between 0 and 1", lambda value: type(value) is float and 0 < value < 1
)
SHARE_OR_END = where("a float from 0 to 1", lambda value: type(value) is float and 0 <= value <= 1)


def on_one_line(value: Any, name: str) -> None:
    """Refuse any text inside a plain value that would begin another line where it is printed."""
    if type(value) is str:
        expect(not _BREAKS.search(value), name, "text on one line", value)
    elif type(value) is list:
        for item in value:
            if type(item) is not float:
                on_one_line(item, name)
    elif type(value) is dict:
        for key, item in value.items():
            on_one_line(key, name)
            on_one_line(item, f"{name}.{key}")


def nullable(check: FieldCheck) -> FieldCheck:
    """Let null pass too."""

    def run(value: Any, name: str) -> None:
        if value is not None:
            check(value, name)

    return FieldCheck(f"{check.expected}, or null", run, check.parts)


def list_of(check: FieldCheck, most: int | None = None) -> FieldCheck:
    """A check of every entry of a list, and of how many there are."""

    def run(value: Any, name: str) -> None:
        expect(type(value) is list, name, "a list", value)
        if most is not None:
            expect(len(value) <= most, name, f"at most {most} entries", len(value))
        for index, item in enumerate(value):
            if check.holds is None or not check.holds(item):
                check(item, f"{name}[{index}]")

    size = "" if most is None else f" of at most {most} entries"
    parts = tuple((f"[]{suffix}", part) for suffix, part in check.parts)
    return FieldCheck(f"a list{size}, each {check.expected}", run, parts)


_MOST_KEYS = 1000


def map_of(check: FieldCheck) -> FieldCheck:
    """A check of every value of a dict, whatever its keys."""

    def run(value: Any, name: str) -> None:
        expect(type(value) is dict, name, "a dict", value)
        expect(len(value) <= _MOST_KEYS, name, f"at most {_MOST_KEYS} keys", len(value))
        for key, item in value.items():
            check(item, f"{name}.{short_repr(key)[1:-1]}")

    return FieldCheck(f"a dict, each value {check.expected}", run)


def record(
    required: Mapping[str, FieldCheck],
    *,
    more: bool = False,
    optional: Mapping[str, FieldCheck] | None = None,
) -> FieldCheck:
    """A check of a dict that has these keys, and may have the optional ones.

    `more` allows others, of any plain value.
    """
    known = {**required, **(optional or {})}

    def run(value: Any, name: str) -> None:
        expect(type(value) is dict, name, "a dict", value)
        for key, check in known.items():
            if key in required or key in value:
                expect(key in value, name, f"a dict with key '{key}'", value)
                check(value[key], f"{name}.{key}")
        if not more:
            unknown = [key for key in value if key not in known]
            expect(not unknown, name, f"only the keys {', '.join(known)}", unknown)

    parts: list[tuple[str, FieldCheck]] = []
    for key, check in known.items():
        parts.append((f".{key}", check))
        parts += [(f".{key}{suffix}", part) for suffix, part in check.parts]
    return FieldCheck("a dict, other keys allowed" if more else "a dict", run, tuple(parts))
