"""Write what follows from the types of the JSON documents: `python -m tests.schemas`.

The JSON Schema files of `stopadvisor/report/schemas`, of documents that no result class gives yet.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, is_typeddict

from jsonschema import Draft202012Validator

from stopadvisor.cli.schema import RESULTS, result_class
from stopadvisor.report.documents.assess import AssessDocument
from stopadvisor.report.documents.fields import alternatives, fields_of
from stopadvisor.results import schema_of

__all__ = ["DOCUMENTS", "FOLDER", "check_valid", "main", "schema", "schema_text"]

FOLDER = Path(__file__).resolve().parent.parent / "stopadvisor" / "report" / "schemas"

DOCUMENTS: dict[str, type] = {"assess": AssessDocument}
"""Every document by the name of its schema."""

_PLAIN: dict[Any, str] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    NoneType: "null",
}


# --- JSON Schema ----------------------------------------------------------------------------------


def schema_text(name: str) -> str:
    """Content of the JSON Schema file of a document."""
    kind = DOCUMENTS[name]
    definitions: dict[str, Any] = {}
    body = _object(kind, definitions, is_open=False)
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": name,
        "description": inspect.getdoc(kind),
        **body,
        **({"$defs": dict(sorted(definitions.items()))} if definitions else {}),
    }
    return json.dumps(schema, ensure_ascii=False, indent=1) + "\n"


def _object(kind: type, definitions: dict[str, Any], *, is_open: bool) -> dict[str, Any]:
    found = fields_of(kind)
    required = [] if is_open else [field.name for field in found if field.required]
    return {
        "type": "object",
        "properties": {
            field.name: {
                "description": field.text,
                **_value(field.kind, definitions, is_open=is_open or field.is_open),
            }
            for field in found
        },
        **({"required": required} if required else {}),
        **({} if is_open else {"additionalProperties": False}),
    }


def _value(kind: Any, definitions: dict[str, Any], *, is_open: bool) -> dict[str, Any]:
    options = alternatives(kind)
    if len(options) > 1:
        if all(option in _PLAIN for option in options):
            return {"type": [_PLAIN[option] for option in options]}
        return {"anyOf": [_value(option, definitions, is_open=is_open) for option in options]}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if kind is Any:
        return {}
    if is_typeddict(kind):
        name = kind.__name__.removeprefix("_") + ("InPolicyFile" if is_open else "")
        if name not in definitions:
            definitions[name] = {}  # a type may hold itself
            definitions[name] = _object(kind, definitions, is_open=is_open)
        return {"$ref": f"#/$defs/{name}"}
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return {"enum": list(arguments)}
    if get_origin(kind) is list:
        return {"type": "array", "items": _value(arguments[0], definitions, is_open=is_open)}
    assert get_origin(kind) is dict, f"no JSON Schema for {kind!r}"
    values = _value(arguments[1], definitions, is_open=is_open)
    return {"type": "object", "additionalProperties": values or True}


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a document."""
    if name in RESULTS:
        return schema_of(result_class(name))
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_bytes())
    return found


def check_valid(name: str, document: Any) -> None:
    """Hold a document against its schema; what does not fit raises, with its place."""
    Draft202012Validator(schema(name)).validate(document)


def main() -> int:
    """Write every schema file, take away those of no document, and name what changed."""
    FOLDER.mkdir(exist_ok=True)
    for name in DOCUMENTS:
        file = FOLDER / f"{name}.json"
        text = schema_text(name)
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
            print(f"wrote {file.name}")
    for file in FOLDER.glob("*.json"):
        if file.stem not in DOCUMENTS:
            file.unlink()
            print(f"took away {file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
