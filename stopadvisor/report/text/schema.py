"""The list of JSON Schemas for people."""

from __future__ import annotations

from typing import TextIO

from stopadvisor.report.documents.program import SchemaListDocument
from stopadvisor.report.text.screen import Screen

__all__ = ["show_schemas"]


def show_schemas(document: SchemaListDocument, out: TextIO) -> None:
    """Print the names of the schemas, and what each describes."""
    screen = Screen(out)
    screen.headline("JSON Schemas: stopadvisor schema NAME")
    screen.facts((row["name"], row["describes"]) for row in document["schemas"])
