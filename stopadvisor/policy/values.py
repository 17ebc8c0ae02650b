"""Plain values: what a policy is made of, and the limits on them.

Plain means str, int, float, bool, None, list and dict.  Knows no file format and no policy field.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NoReturn

from stopadvisor.errors import PolicyError
from stopadvisor.printable import short_repr

__all__ = [
    "MAX_BYTES",
    "MAX_CONTAINERS",
    "MAX_DEPTH",
    "MAX_ELEMENTS",
    "MAX_TEXT",
    "ReadOnlyDict",
    "ReadOnlyList",
    "TextBudget",
    "check_plain",
    "read_only",
    "to_plain",
]

MAX_BYTES = 8 * 2**20
"""Largest policy file read; one with hashed ids of 50,000 questions stays below it."""
MAX_ELEMENTS = 250_000
"""Most values and keys in one policy."""
MAX_CONTAINERS = 50_000
"""Most lists and dicts among them; each takes as much memory as ten numbers."""
MAX_TEXT = 2**20
"""Most bytes of one text."""
MAX_DEPTH = 24
"""Deepest nesting of lists and dicts."""
_MAX_INT = 2**63


def to_plain(value: Any) -> Any:
    """Copy a value into plain Python: tuples become lists, numpy values become numbers and lists.

    Equal strings become one object, so that equal contents give equal pickles.

    Raises
    ------
    PolicyError
        Something else than str, int, float, bool, None, list, tuple, dict or numpy values.
    """
    return _to_plain(value, {}, 0)


def _to_plain(value: Any, texts: dict[str, str], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise PolicyError(f"a policy may nest at most {MAX_DEPTH} levels deep")
    if value is None or type(value) in (bool, int, float):
        return value
    if type(value) is str:
        return texts.setdefault(value, value)
    if isinstance(value, Mapping):
        return {
            _to_plain(key, texts, depth): _to_plain(item, texts, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_to_plain(item, texts, depth + 1) for item in value]
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return _to_plain(value.tolist(), texts, depth + 1)  # deeper: longdouble gives itself back
    raise PolicyError(
        "a policy holds str, int, float, bool, None, list and dict only, "
        f"got {type(value).__name__} {short_repr(value)}"
    )


# --- Values that nobody can change ----------------------------------------------------------------


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError("a policy's content is read-only; values.to_plain(…) gives a copy to change")


class ReadOnlyDict(dict[str, Any]):
    """A dict that cannot be changed; equal to a plain one, and written as one to JSON."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        """Copy and pickle as a plain dict."""
        return dict, (dict(self),)


class ReadOnlyList(list[Any]):
    """A list that cannot be changed; equal to a plain one, and written as one to JSON."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = remove = clear = sort = reverse = _refuse
    pop = _refuse

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        """Copy and pickle as a plain list."""
        return list, (list(self),)


def read_only(value: Any) -> Any:
    """Copy plain values once into containers that cannot be changed, at any depth."""
    if isinstance(value, dict):
        return ReadOnlyDict({key: read_only(item) for key, item in value.items()})
    if isinstance(value, list):
        return ReadOnlyList([read_only(item) for item in value])
    return value


# --- Limits and digest ----------------------------------------------------------------------------


class TextBudget:
    """What is left of the memory that a policy's texts may take: `MAX_BYTES`.

    One letter beyond ASCII doubles or quadruples what Python takes for the whole text, so memory is
    counted and not the file's bytes.
    """

    def __init__(self) -> None:
        self._left = MAX_BYTES

    def check_size(self, size: int) -> None:
        """Refuse a text for its size alone, before it is read."""
        if size > MAX_TEXT:
            raise PolicyError(f"a text in a policy has at most {MAX_TEXT} bytes, one has {size}")

    def spend(self, text: str) -> None:
        """Count one text."""
        size = len(text)
        if not text.isascii():
            size = sys.getsizeof(text)
        if size > MAX_TEXT:
            self.check_size(len(text.encode("utf-8", "surrogatepass")))
        self._left -= size
        if self._left < 0:
            raise PolicyError(f"a policy holds at most {MAX_BYTES} bytes of text, this one more")


def check_plain(content: Any) -> None:
    """Check a decoded value against the limits on types, depth, number and size of its elements.

    Raises
    ------
    PolicyError
        Not plain, not finite, too deep, too many, an integer beyond 64 bits, a key that is no
        string, or text that is no valid Unicode.
    """
    count = containers = 0
    texts = TextBudget()
    field = ""  # at the top of the policy
    # Iterators of the containers that are open, instead of recursion: nesting may be hostile.
    levels: list[Iterator[Any]] = [iter((content,))]
    while levels:
        value = next(levels[-1], _DONE)
        if value is _DONE:
            levels.pop()
            continue
        count += 1
        if count > MAX_ELEMENTS:
            raise PolicyError(f"a policy holds at most {MAX_ELEMENTS} values, this one more")
        kind = type(value)
        if kind is _FieldName:
            field = value.name
            continue
        if kind is str:
            texts.spend(value)
            if not value.isascii():
                _check_unicode(value, field)
        elif kind is float:
            if not math.isfinite(value):
                raise PolicyError(f"{_in(field)}numbers must be finite, got {value!r}")
        elif kind is int:
            if not -_MAX_INT <= value < _MAX_INT:
                raise PolicyError(f"{_in(field)}integers must fit 64 bits, got {short_repr(value)}")
        elif kind is list or kind is dict:
            containers += 1
            if containers > MAX_CONTAINERS:
                raise PolicyError(f"a policy holds at most {MAX_CONTAINERS} lists and dicts")
            if len(levels) > MAX_DEPTH:
                raise PolicyError(f"{_in(field)}a policy may nest at most {MAX_DEPTH} levels deep")
            if kind is list:
                levels.append(iter(value))
            elif len(levels) == 1:
                levels.append(_fields(value))
            else:
                levels.append(chain(_keys(value, field), value.values()))
        elif value is not None and kind is not bool:
            raise PolicyError(f"{_in(field)}expected plain values, got {kind.__name__}")


_DONE: Any = object()


class _FieldName:
    """The name of a top-level field, which stands in messages about what is in it."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


def _fields(content: Mapping[str, Any]) -> Iterator[Any]:
    for key, value in zip(_keys(content, ""), content.values(), strict=True):
        yield key
        yield _FieldName(key)
        yield value


def _keys(container: Mapping[Any, Any], field: str) -> Iterator[str]:
    for key in container:
        if type(key) is not str:
            raise PolicyError(f"{_in(field)}keys must be strings, got {short_repr(key)}")
        yield key


def _in(field: str) -> str:
    return f"field {short_repr(field)}: " if field else ""


def _check_unicode(value: str, field: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise PolicyError(
            f"{_in(field)}text must be valid Unicode, got {short_repr(value)}"
        ) from error
