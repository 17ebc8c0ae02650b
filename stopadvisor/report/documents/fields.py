"""What a document's type says of its fields, and documents filled by it.

Knows no command: a `TypedDict` comes in, each of its fields `Annotated` with a description.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NotRequired,
    TypedDict,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

__all__ = ["FROM_POLICY_FILE", "SCHEMA", "Document", "Field", "alternatives", "fields_of", "fill"]

FROM_POLICY_FILE = "from a policy file"
"""Marks a field that is copied from a policy file, in which a policy by another program may hold
more, or less."""

SCHEMA = 1
"""Of every document; raised when a program that reads one has to change."""

D = TypeVar("D")
_MISSING = object()


class Document(TypedDict):
    """What every document holds, but that of an error."""

    schema: Annotated[int, "Now 1; raised when a program that reads this has to change."]


@dataclass(frozen=True)
class Field:
    """One field of a document's type."""

    name: str
    kind: Any
    required: bool
    text: str
    is_open: bool
    """It comes from a policy file, in which another program may have written more, or less."""


@cache
def fields_of(kind: type) -> tuple[Field, ...]:
    """Fields of a TypedDict, in the order in which its documents' schemas list them."""
    found = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        optional = get_origin(hint) is NotRequired
        noted = get_args(hint)[0] if optional else hint
        if get_origin(noted) is not Annotated:
            raise TypeError(f"field {name!r} of {kind.__name__} must have a description")
        text, *marks = noted.__metadata__
        # Annotations are strings as yet when a class notes its keys: it sees `total=False` alone.
        required = not optional and name not in kind.__dict__["__optional_keys__"]
        found.append(Field(name, noted.__origin__, required, text, FROM_POLICY_FILE in marks))
    return tuple(found)


def alternatives(kind: Any) -> tuple[Any, ...]:
    """Types that a type allows: those of a union, or itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def fill(kind: type[D], *sources: object, **values: object) -> D:
    """Fill a document from what has attributes, or keys, under the names of its fields.

    Parameters
    ----------
    kind : type
        The document's TypedDict.  Objects in the place of its parts are filled in the same way,
        sequences become lists and paths text; a mapping stays what it is.
    *sources : object
        Each field comes from the first one that has it.
    **values
        Fields that no source has under their name, or that need another value than its.
        ``schema`` need not be given: it is ``SCHEMA``.

    Returns
    -------
    dict
        Fields in the order of the type.  An optional field is left out where nothing gives it, and
        where it is None though its type knows no None.

    Raises
    ------
    TypeError
        A required field is missing, or the document has no field of a name in `values`.
    """
    found, fields = {}, fields_of(cast(type, kind))
    if unknown := values.keys() - {field.name for field in fields}:
        raise TypeError(f"{kind.__name__} has no field {min(unknown)!r}")
    for field in fields:
        value = _find(field.name, ({"schema": SCHEMA} | values, *sources))
        if field.required:
            if value is _MISSING:
                raise TypeError(f"{kind.__name__} requires field {field.name!r}, nothing gives it")
        elif value is _MISSING or (value is None and NoneType not in alternatives(field.kind)):
            continue
        found[field.name] = _plain(field.kind, value)
    return cast(D, found)


def _find(name: str, sources: tuple[object, ...]) -> object:
    for source in sources:
        if isinstance(source, Mapping):
            value = source.get(name, _MISSING)
        else:
            value = getattr(source, name, _MISSING)
        if value is not _MISSING:
            return value
    return _MISSING


def _plain(kind: Any, value: Any) -> Any:
    """A value as JSON has it, by the type of its field."""
    if isinstance(value, Path):
        return str(value)
    for option in alternatives(kind) if value is not None else ():
        if get_origin(option) is list:
            return [_plain(get_args(option)[0], item) for item in value]
        if get_origin(option) is dict:
            return dict(value)
        if is_typeddict(option) and not isinstance(value, Mapping):
            return fill(option, value)
    return value
