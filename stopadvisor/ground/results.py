"""JSON and JSON Schemas of results, both derived from frozen dataclasses.

A result is a frozen dataclass of plain values with a sentence under each field, and its JSON has
the field names as keys:

- A field whose default is None is left out while it is None.
- In a class with ``SPARSE: ClassVar[bool] = True`` a field is left out while it has its default.
- ``field(default=None, metadata={"present_with": "n"})`` is present, null or not, unless ``n`` is
  null.
- ``field(metadata={"alias": "kv-fork"})`` sets a key that is not a Python name.
- Fields named in ``UNSHOWN: ClassVar[tuple[str, ...]]`` are in no document, and so in no schema.
- ``SCHEMA: ClassVar[int] = 3`` sets the schema number of a class's documents; None leaves it out.

pydantic is imported only to read a document back or to derive a schema: it is slow to import.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from inspect import getsource
from textwrap import dedent
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

from stopadvisor.ground.errors import ProbeError
from stopadvisor.ground.fields import plain
from stopadvisor.ground.printable import json_safe

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import TypeAdapter

__all__ = [
    "SCHEMA", "Shown", "from_document", "schema_of", "sentences_of", "show_as", "to_document",
    "to_json",
]  # fmt: skip

SCHEMA = 2
"""Default ``schema`` of documents; raised when programs that read some of them must change."""

Result = TypeVar("Result")
_SHOWN: dict[type, Callable[[Any], str]] = {}


class Shown:
    """A result that notebooks show as HTML, as registered by `show_as`."""

    def _repr_html_(self) -> str | None:
        show = _SHOWN.get(type(self))
        return None if show is None else show(self)


def show_as(kind: type[Result], show: Callable[[Result], str]) -> None:
    """Register the function that returns the HTML of a class of results."""
    _SHOWN[kind] = show


def to_document(result: DataclassInstance) -> dict[str, Any]:
    """Convert a result to the JSON object that commands print and runs keep."""
    return {**_number(type(result)), **plain(result, sparse=False)}


def to_json(result: DataclassInstance, *, indent: int | None = 1) -> str:
    """Convert a result to JSON text without characters that could steer a terminal."""
    document = to_document(result)
    return json_safe(json.dumps(document, ensure_ascii=False, allow_nan=False, indent=indent))


def from_document(kind: type[Result], document: object, where: object, hint: str = "") -> Result:
    """Read a result back; `where` names the document in the error, which ends in `hint`.

    Raises
    ------
    ProbeError
        The document does not fit `kind`.
    """
    from pydantic import ValidationError

    try:
        return cast("Result", _adapter(cast("type", kind)).validate_python(document))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise ProbeError(
            f"{where}: not a {kind.__name__}: {place}: {first['msg']}, got {first['input']!r:.80}"
            f"{hint}"
        ) from error


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    """Cache the adapters: building one takes milliseconds, and files have many lines."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _number(kind: type) -> dict[str, int]:
    """Return the key ``schema`` of a document; empty for documents without one."""
    number = getattr(kind, "SCHEMA", SCHEMA)
    return {} if number is None else {"schema": number}


def _is_optional(kind: type, field: Field[Any]) -> bool:
    """Whether a field is left out while it has its default."""
    return field.default is not MISSING if getattr(kind, "SPARSE", False) else field.default is None


def _key(field: Field[Any]) -> str:
    return str(field.metadata.get("alias", field.name))


# --- Schemas --------------------------------------------------------------------------------------


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a result's document, each field described by its sentence.

    `kind` is a result class, or a union of several.
    """
    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema

    class Described(GenerateJsonSchema):
        def dataclass_schema(self, schema: Any) -> dict[str, Any]:
            described = super().dataclass_schema(schema)
            _describe(described, schema["cls"])
            return described

    schema = TypeAdapter(kind).json_schema(schema_generator=Described)
    # The schema of a recursive result is a reference to one of its definitions.
    if "$ref" in schema:
        schema |= schema["$defs"][schema.pop("$ref").removeprefix("#/$defs/")]
    text = "Raised when a program that reads this must change."
    for each in get_args(kind) or (kind,):
        part = schema if each is kind else schema["$defs"][each.__name__]
        for number in _number(each).values():
            shown = {"const": number, "description": text}
            part["properties"] = {"schema": shown, **part["properties"]}
            part["required"] = ["schema", *part["required"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _describe(schema: dict[str, Any], kind: type[DataclassInstance]) -> None:
    """Add the sentences; let optional fields be missing, but not null."""
    sentences = sentences_of(kind)
    for name in getattr(kind, "UNSHOWN", ()):
        del schema["properties"][name]
    known = [field for field in fields(kind) if _key(field) in schema["properties"]]
    schema["required"] = [_key(field) for field in known if not _is_optional(kind, field)]
    for field in known:
        shown = schema["properties"][_key(field)]
        shown.pop("title", None)
        if field.name in sentences:
            shown["description"] = sentences[field.name]
        if shown.pop("default", ...) is None and "present_with" not in field.metadata:
            shown["anyOf"] = [one for one in shown["anyOf"] if one != {"type": "null"}]
            if len(shown["anyOf"]) == 1:
                shown |= shown.pop("anyOf")[0]


@cache
def sentences_of(kind: type) -> dict[str, str]:
    """Return the sentence under each field of a dataclass, inherited ones included."""
    sentences: dict[str, str] = {}
    for base in reversed([each for each in kind.__mro__ if is_dataclass(each)]):
        (body,) = ast.parse(dedent(getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for line, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                match below:
                    case ast.Expr(ast.Constant(str(text))):
                        sentences[line.target.id] = " ".join(text.split())
    return sentences
