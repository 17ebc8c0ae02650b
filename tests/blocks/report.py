"""Blocks about the JSON documents: a table of fields for each, and for the parts they share."""

from __future__ import annotations

from functools import partial

from tests.generate import Block, table
from tests.schemas import DOCUMENTS, PARTS, field_table

__all__ = ["BLOCKS"]


def _fields(kind: type) -> str:
    return table(("field", "type", "meaning"), field_table(kind))


BLOCKS: dict[str, Block] = {
    f"json-{name}": partial(_fields, kind) for name, kind in {**PARTS, **DOCUMENTS}.items()
}
