"""Read frozen dataclasses from JSON values, checked by the annotation of each field.

Written by hand, because loading a policy must need no package but numpy.  An error names the field
and what was expected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from stopadvisor.ground.errors import PolicyError, StopAdvisorError
from stopadvisor.ground.printable import short_repr

__all__ = [
    "MOST_TOKENS", "Condition", "Count", "Kind", "Line", "Most", "Name", "Positive", "Sha256",
    "Share", "ShareOrEnd", "Some", "TokenCount", "TokenId", "expect", "kind_of", "matching",
    "one_of", "parse", "parse_as", "plain",
]  # fmt: skip

_T = TypeVar("_T")


def expect(ok: bool, name: str, expected: str, value: Any) -> None:
    """Refuse the value of a field unless `ok`."""
    if not ok:
        raise PolicyError(f"field '{name}': expected {expected}, got {short_repr(value)}")


@dataclass(frozen=True)
class Condition:
    """A condition on a value of the right type."""

    expected: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class Most:
    """Limit on the entries of a list."""

    count: int


# --- Types of fields ------------------------------------------------------------------------------

MOST_TOKENS = 2**24
"""Most tokens of a prompt, trace or vocabulary: 16 times the longest context of any model today."""
_MOST_COUNTED = 10_000_000
"""Most questions: exact tests over this many are repeated in milliseconds."""
_BREAKS = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


def _whole(least: int, most: int) -> Condition:
    return Condition(f"an integer from {least} to {most}", lambda value: least <= value <= most)


def one_of(*options: str) -> Condition:
    """Accept one of these texts."""
    return Condition("one of " + ", ".join(map(repr, options)), lambda value: value in options)


def matching(pattern: str, expected: str) -> Condition:
    """Accept a text that matches as a whole."""
    return Condition(expected, lambda value: bool(re.fullmatch(pattern, value)))


TokenId = Annotated[int, _whole(0, MOST_TOKENS)]
TokenCount = Annotated[int, _whole(1, MOST_TOKENS)]
Count = Annotated[int, _whole(0, _MOST_COUNTED)]
Some = Annotated[int, _whole(1, _MOST_COUNTED)]
Share = Annotated[float, Condition("a float strictly between 0 and 1", lambda value: 0 < value < 1)]
ShareOrEnd = Annotated[float, Condition("a float from 0 to 1", lambda value: 0 <= value <= 1)]
Positive = Annotated[float, Condition("a float > 0", lambda value: value > 0)]
Name = Annotated[str, Condition("a non-empty string", bool)]
Line = Annotated[
    str,
    Condition(
        "a non-empty string on one line", lambda value: bool(value) and not _BREAKS.search(value)
    ),
]
Sha256 = Annotated[str, matching("[0-9a-f]{64}", "a SHA-256 in 64 hex digits")]

# --- Reading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """Reader of the values of one annotation."""

    expected: str
    """The accepted values in words."""
    read: Callable[[Any, str], Any]
    """Returns the typed value; takes the JSON value and the name of its field, for errors."""
    holds: Callable[[Any], bool] | None = None
    """Whether a value passes unchanged; None if unknown. Speeds up long lists."""


def _scalar(expected: str, holds: Callable[[Any], bool]) -> Kind:
    def read(value: Any, name: str) -> Any:
        expect(holds(value), name, expected, value)
        return value

    return Kind(expected, read, holds)


def _is_text(value: Any) -> bool:
    if type(value) is not str:
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:  # one half of a surrogate pair
        return False


def _is_real(value: Any) -> bool:
    return type(value) is float and math.isfinite(value)


def _read_real(value: Any, name: str) -> float:
    """Read a float; other languages write 1.0 as 1."""
    if type(value) is int and abs(value) < 2**63:
        return float(value)
    expect(type(value) is float, name, "a float", value)
    expect(math.isfinite(value), name, "a finite float", value)
    return float(value)


_SCALARS: dict[Any, Kind] = {
    str: _scalar("a string of valid Unicode", _is_text),
    bool: _scalar("true or false", lambda value: type(value) is bool),
    int: _scalar(
        "an integer of 64 bits", lambda value: type(value) is int and -(2**63) <= value < 2**63
    ),
    float: Kind("a float", _read_real, _is_real),
}
_MOST_KEYS = 1000
_MOST_DEPTH = 8


@cache
def kind_of(annotation: Any) -> Kind:
    """Return the reader of an annotation."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if annotation is Any:
        return Kind("any plain value", _read_anything)
    if origin is Annotated:
        kind = kind_of(arguments[0])
        for check in arguments[1:]:
            kind = _at_most(kind, check.count) if isinstance(check, Most) else _checked(kind, check)
        return kind
    if origin in (Union, UnionType):
        return _nullable(kind_of(next(a for a in arguments if a is not NoneType)))
    if origin is Literal:
        options = ", ".join(map(repr, arguments))
        return _scalar(f"one of {options}", lambda value: type(value) is str and value in arguments)
    if origin is tuple:
        return (_list if arguments[-1] is ... else _pair)(kind_of(arguments[0]))
    if origin is Mapping:
        return _map(kind_of(arguments[1]))
    if is_dataclass(annotation):
        return _record(cast("type[Any]", annotation))
    raise TypeError(f"no policy holds a {annotation!r}")


def _checked(base: Kind, check: Condition) -> Kind:
    has_type = base.holds

    def read(value: Any, name: str) -> Any:
        if has_type is None or (base is _SCALARS[float] and type(value) in (int, float)):
            value = base.read(value, name)
        expect(has_type is None or has_type(value), name, check.expected, value)
        expect(check.holds(value), name, check.expected, value)
        return value

    if has_type is None:
        return Kind(check.expected, read)
    return Kind(check.expected, read, lambda value: has_type(value) and check.holds(value))


def _nullable(kind: Kind) -> Kind:
    def read(value: Any, name: str) -> Any:
        return None if value is None else kind.read(value, name)

    return Kind(f"{kind.expected}, or null", read)


def _list(kind: Kind) -> Kind:
    def read(value: Any, name: str) -> tuple[Any, ...]:
        expect(type(value) is list, name, "a list", value)
        if kind.holds is not None and all(map(kind.holds, value)):
            return tuple(value)
        return tuple(kind.read(item, f"{name}[{index}]") for index, item in enumerate(value))

    return Kind(f"a list, each {kind.expected}", read)


def _at_most(kind: Kind, most: int) -> Kind:
    def read(value: Any, name: str) -> Any:
        if type(value) is list:
            expect(len(value) <= most, name, f"at most {most} entries", len(value))
        return kind.read(value, name)

    expected = kind.expected.replace("a list", f"a list of at most {most} entries", 1)
    return Kind(expected, read)


def _pair(kind: Kind) -> Kind:
    expected = f"two numbers, each {kind.expected}, the lower first"

    def read(value: Any, name: str) -> tuple[Any, ...]:
        expect(type(value) is list and len(value) == 2, name, expected, value)
        low, high = (kind.read(item, name) for item in value)
        expect(low <= high, name, expected, value)
        return low, high

    return Kind(expected, read)


def _map(kind: Kind) -> Kind:
    def read(value: Any, name: str) -> Mapping[str, Any]:
        expect(type(value) is dict, name, "a dict", value)
        expect(len(value) <= _MOST_KEYS, name, f"at most {_MOST_KEYS} keys", len(value))
        for key in value:
            expect(_is_text(key) and not _BREAKS.search(key), name, "keys on one line", key)
        return MappingProxyType(
            {key: kind.read(item, f"{name}.{key}") for key, item in value.items()}
        )

    return Kind(f"a dict, each value {kind.expected}", read)


def _record(cls: type[Any]) -> Kind:
    hints = get_type_hints(cls, include_extras=True)
    kinds = {field.name: kind_of(hints[field.name]) for field in fields(cls)}
    required = {
        f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING
    }

    def read(value: Any, name: str) -> Any:
        expect(type(value) is dict, name, "a dict", value)
        prefix = f"{name}." if name else ""
        made = {}
        for key, kind in kinds.items():
            if key in value:
                made[key] = kind.read(value[key], prefix + key)
            elif key in required:
                raise PolicyError(f"field '{prefix}{key}' is missing")
        for key in value:
            if key not in kinds:
                raise PolicyError(f"field {short_repr(prefix + key)} is unknown")
        try:
            return cls(**made)
        except StopAdvisorError as error:  # its fields contradict each other
            raise PolicyError(f"field '{name}': {error}") from error

    return Kind("a dict", read)


def _read_anything(value: Any, name: str, depth: int = 0) -> Any:
    """Read a plain value of any type; lists and dicts are copied."""
    expect(depth <= _MOST_DEPTH, name, f"at most {_MOST_DEPTH} levels", "more")
    if type(value) is list:
        return [_read_anything(item, name, depth + 1) for item in value]
    if type(value) is dict:
        return {
            _SCALARS[str].read(key, name): _read_anything(item, f"{name}.{key}", depth + 1)
            for key, item in value.items()
        }
    if value is not None:
        expect(type(value) in _SCALARS, name, "a plain value", value)
        _SCALARS[type(value)].read(value, name)
    return value


def parse(cls: type[_T], value: Any) -> _T:
    """Read a frozen dataclass, and everything in it, from a JSON object.

    Raises
    ------
    PolicyError
        A field is missing, unknown, or does not fit its annotation.
    """
    return cast("_T", kind_of(cast("Any", cls)).read(value, ""))


def parse_as(error: type[StopAdvisorError], cls: type[_T], value: Any, where: object) -> _T:
    """Like `parse`, but raise `error`; `where` names the document."""
    try:
        return parse(cls, value)
    except PolicyError as refused:
        raise error(f"{where}: {refused}") from None


# --- Back to JSON ---------------------------------------------------------------------------------


_PLAIN = (str, int, float, bool, NoneType)
_DEEPEST = 24


def plain(value: Any, *, sparse: bool = True, depth: int = 0) -> Any:
    """Convert dataclasses, mappings, tuples and numpy values to JSON values; others stay.

    If `sparse`, fields that equal their default are left out; otherwise the rules of
    `ground.results` apply, and paths become text.
    """
    if type(value) in _PLAIN:
        return value
    if depth >= _DEEPEST:
        raise PolicyError(f"a policy may nest at most {_DEEPEST} levels deep")
    inner = partial(plain, sparse=sparse, depth=depth + 1)
    if is_dataclass(value):
        return {
            field.metadata.get("alias", field.name): inner(getattr(value, field.name))
            for field in fields(value)
            if not _is_left_out(value, field, sparse=sparse)
        }
    if isinstance(value, Mapping):
        return {str(key): inner(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        if all(type(item) in _PLAIN for item in value):
            return list(value)
        return [inner(item) for item in value]
    if isinstance(value, Path) and not sparse:
        return str(value)
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return inner(value.tolist())  # one level deeper: a longdouble's tolist() is a longdouble
    return value


def _is_left_out(value: Any, field: Field[Any], *, sparse: bool) -> bool:
    if field.default is MISSING or getattr(value, field.name) != field.default:
        return False
    if sparse:
        return True
    companion = field.metadata.get("present_with")
    may_miss = field.default is None or getattr(value, "SPARSE", False)
    return may_miss and (companion is None or getattr(value, companion) is None)
