"""Check documents against their JSON Schemas."""

from __future__ import annotations

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from stopadvisor.cli.schema import result_class
from stopadvisor.ground.results import schema_of

__all__ = ["check_valid", "schema", "validator"]


@cache
def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a document."""
    return schema_of(result_class(name))


@cache
def validator(name: str) -> Draft202012Validator:
    """Return the validator of a document's schema."""
    return Draft202012Validator(schema(name))


def check_valid(name: str, document: Any) -> None:
    """Check a document against its schema; the error names the place that does not fit."""
    validator(name).validate(document)
