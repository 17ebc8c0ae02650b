"""Plain values: what a policy is made of, the limits on them, and their digest.

Plain means str, int, float, bool, None, list and dict.  Knows no file format and no policy field.
"""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
from collections.abc import Mapping
from typing import Any, NoReturn

from stopadvisor.errors import PolicyError

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_ELEMENTS",
    "ReadOnlyDict",
    "ReadOnlyList",
    "canonical_digest",
    "check_plain",
    "read_only",
    "short_repr",
    "to_plain",
]

MAX_BYTES = 8 * 2**20
"""Largest policy file read; one with hashed ids of 50,000 questions stays below it."""
MAX_ELEMENTS = 250_000
"""Most values and keys in one policy."""
MAX_DEPTH = 24
"""Deepest nesting of lists and dicts."""
_MAX_INT = 2**63

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlist = _SHORT.maxdict = _SHORT.maxlevel = 4


def short_repr(value: object) -> str:
    """Write a value for an error message: on one line, and shortened."""
    return " ".join(_SHORT.repr(value).split())


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
            _to_plain(key, texts, depth + 1): _to_plain(item, texts, depth + 1)
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


def check_plain(content: Any) -> None:
    """Check a decoded value against the limits on types, depth, number and size of its elements.

    Raises
    ------
    PolicyError
        Not plain, not finite, too deep, too many, an integer beyond 64 bits, a key that is no
        string, or text that is no valid Unicode.
    """
    count = text = 0
    # (value, depth, top-level field), in a list instead of recursion: nesting may be hostile.
    waiting: list[tuple[Any, int, str]] = [(content, 0, "")]
    while waiting:
        value, depth, field = waiting.pop()
        where = f"field {short_repr(field)}: " if field else ""
        count += 1
        if count > MAX_ELEMENTS:
            raise PolicyError(f"a policy holds at most {MAX_ELEMENTS} values, this one more")
        kind = type(value)
        if kind is str:
            text += _text_size(value, where)
        elif kind is float:
            if not math.isfinite(value):
                raise PolicyError(f"{where}numbers must be finite, got {value!r}")
        elif kind is int:
            if not -_MAX_INT <= value < _MAX_INT:
                raise PolicyError(f"{where}integers must fit 64 bits, got {short_repr(value)}")
        elif kind is list or kind is dict:
            if depth >= MAX_DEPTH:
                raise PolicyError(f"{where}a policy may nest at most {MAX_DEPTH} levels deep")
            if kind is list:
                waiting.extend((item, depth + 1, field) for item in value)
                continue
            for key, item in value.items():
                if type(key) is not str:
                    raise PolicyError(f"{where}keys must be strings, got {short_repr(key)}")
                text += _text_size(key, where)
                waiting.append((item, depth + 1, field or key))
        elif value is not None and kind is not bool:
            raise PolicyError(f"{where}expected plain values, got {kind.__name__}")
        if text > MAX_BYTES:
            raise PolicyError(f"a policy holds at most {MAX_BYTES} bytes of text, this one more")


def _text_size(value: str, where: str) -> int:
    try:
        return len(value.encode())
    except UnicodeEncodeError as error:
        raise PolicyError(f"{where}text must be valid Unicode, got {short_repr(value)}") from error


def canonical_digest(content: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over the canonical JSON of everything but `digest`.

    Canonical: keys sorted, no spaces, ASCII with escapes, floats as Python's repr.  It detects
    damage; it is no signature.
    """
    rest = {key: value for key, value in content.items() if key != "digest"}
    text = json.dumps(
        rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return hashlib.sha256(text.encode("ascii")).hexdigest()
