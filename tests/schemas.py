"""Write what follows from the types of the JSON documents: `python -m tests.schemas`.

The JSON Schema files of `stopadvisor/report/schemas`, which `stopadvisor schema` shows, and the
tables of fields in `stopadvisor/report/README.md`.  A test fails while a file is out of date.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, is_typeddict

from jsonschema import Draft202012Validator

from stopadvisor.report.documents import parts
from stopadvisor.report.documents.assess import AssessDocument
from stopadvisor.report.documents.calibrate import CalibrateDocument
from stopadvisor.report.documents.diff import DiffDocument
from stopadvisor.report.documents.fields import alternatives, fields_of
from stopadvisor.report.documents.inspect import InspectDocument
from stopadvisor.report.documents.label import LabelDocument
from stopadvisor.report.documents.monitor import MonitorDocument
from stopadvisor.report.documents.plan import PlanDocument
from stopadvisor.report.documents.probe import PreflightDocument, ProbeDocument
from stopadvisor.report.documents.profile_serving import ProfileServingDocument
from stopadvisor.report.documents.program import (
    CompletionDocument,
    ErrorDocument,
    SamplesDocument,
    SchemaListDocument,
)
from stopadvisor.report.documents.promote import PromoteDocument
from stopadvisor.report.documents.run import RunDocument
from stopadvisor.report.documents.study import StudyAllDocument, StudyDocument, StudyListDocument
from stopadvisor.report.documents.verify import VerifyDocument
from stopadvisor.report.documents.written import (
    ImportDocument,
    ImportLogDocument,
    ReportDocument,
    SimulateDocument,
    WorkloadDocument,
)

__all__ = [
    "DOCUMENTS",
    "FOLDER",
    "PARTS",
    "check_valid",
    "field_table",
    "main",
    "schema",
    "schema_text",
]

FOLDER = Path(__file__).resolve().parent.parent / "stopadvisor" / "report" / "schemas"

DOCUMENTS: dict[str, type] = {
    "assess": AssessDocument,
    "calibrate": CalibrateDocument,
    "label": LabelDocument,
    "report": ReportDocument,
    "probe": ProbeDocument,
    "preflight": PreflightDocument,
    "import": ImportDocument,
    "import-log": ImportLogDocument,
    "inspect": InspectDocument,
    "diff": DiffDocument,
    "promote": PromoteDocument,
    "verify": VerifyDocument,
    "run": RunDocument,
    "profile-serving": ProfileServingDocument,
    "monitor": MonitorDocument,
    "plan": PlanDocument,
    "simulate": SimulateDocument,
    "workload": WorkloadDocument,
    "study": StudyDocument,
    "study-all": StudyAllDocument,
    "study-list": StudyListDocument,
    "samples": SamplesDocument,
    "schema-list": SchemaListDocument,
    "completion": CompletionDocument,
    "error": ErrorDocument,
}
"""Every document by the name of its schema."""

PARTS: dict[str, type] = {
    "certificate": parts.CertificateFields,
    "expected": parts.ExpectedFields,
    "profile": parts.ProfileFields,
    "weights": parts.WeightFields,
}
"""Parts that have a table of their own, as several documents hold them."""

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
    """Return the JSON Schema that the package ships for a document."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_bytes())
    return found


def check_valid(name: str, document: Any) -> None:
    """Hold a document against its schema; what does not fit raises, with its place."""
    Draft202012Validator(schema(name)).validate(document)


# --- Tables of fields -----------------------------------------------------------------------------


def field_table(kind: type) -> list[tuple[str, str, str]]:
    """Rows of name, type and meaning; fields inside fields under a dotted name."""
    return list(_rows(kind, "", {}))


def _rows(kind: type, path: str, shown: dict[type, str]) -> Iterator[tuple[str, str, str]]:
    for field in fields_of(kind):
        name = f"{path}{field.name}"
        inside = _inside(field.kind)
        part = next((title for title, known in PARTS.items() if known is inside), None)
        text = field.text
        if part is not None:
            text += f" See [{part}](#{part})."
        elif inside in shown:
            text += f" Its fields are those of `{shown[inside]}`."
        yield f"`{name}`", _words(field.kind) + ("" if field.required else ", optional"), text
        if inside is None or part is not None or inside in {*shown, *DOCUMENTS.values()}:
            continue
        shown[inside] = f"{name}[]" if _is_list(field.kind) else name
        yield from _rows(inside, f"{shown[inside]}.", shown)


def _is_list(kind: Any) -> bool:
    return any(get_origin(option) is list for option in alternatives(kind))


def _inside(kind: Any) -> type | None:
    """The type of a field's own fields, or of those of the items of a list."""
    for option in alternatives(kind):
        inner = get_args(option)[0] if get_origin(option) is list else option
        if is_typeddict(inner):
            found: type = inner
            return found
    return None


def _words(kind: Any) -> str:
    """A type in words."""
    return " or ".join(_word(option) for option in alternatives(kind))


def _word(kind: Any) -> str:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if get_origin(kind) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) is list:
        (item,) = get_args(kind)
        word = _word(item)
        several = f"lists{word.removeprefix('list')}" if word.startswith("list") else f"{word}s"
        return "list" if len(alternatives(item)) > 1 else f"list of {several}"
    return "object"


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
