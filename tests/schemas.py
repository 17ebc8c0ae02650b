"""JSON Schemas of documents, and documents held against them."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

from stopadvisor.cli.schema import result_class
from stopadvisor.ground.results import schema_of

__all__ = ["check_valid", "schema"]


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a document."""
    return schema_of(result_class(name))


def check_valid(name: str, document: Any) -> None:
    """Hold a document against its schema; what does not fit raises, with its place."""
    Draft202012Validator(schema(name)).validate(document)
