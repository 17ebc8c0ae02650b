"""Blocks about the policy file: its fields, as the schema that checks them says."""

from __future__ import annotations

from collections.abc import Iterator

from stopadvisor.policy.checks import FieldCheck
from stopadvisor.policy.schema import FIELDS
from tests.generate import Block, table

__all__ = ["BLOCKS"]


def _rows(name: str, check: FieldCheck) -> Iterator[tuple[str, str, str]]:
    yield f"`{name}`", check.expected, check.meaning
    for suffix, part in check.parts:
        yield f"`{name}{suffix}`", part.expected, part.meaning


def _fields() -> str:
    rows: list[tuple[str, str, str]] = []
    for name, check in FIELDS.items():
        rows += _rows(name, check)
    return table(("field", "value", "meaning"), rows)


BLOCKS: dict[str, Block] = {"policy-fields": _fields}
