"""What the program itself prints as JSON: an error, a shell's script, the list of schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypedDict

from stopadvisor.report.documents.fields import Document, fill

__all__ = [
    "CompletionDocument",
    "ErrorDocument",
    "SchemaListDocument",
    "completion_document",
    "error_document",
    "schema_list_document",
]


class _Error(TypedDict):
    type: Annotated[str, "Its class."]
    message: Annotated[str, "One line that says what is wrong, and what is required."]
    exit_code: Annotated[int, "With which the command ended."]


class ErrorDocument(TypedDict):
    """Any command with `--json`, where it ends in an error."""

    error: Annotated[_Error, "What went wrong."]


class CompletionDocument(Document):
    """`completion --json`."""

    shell: Annotated[str, "`bash`, `zsh` or `fish`."]
    script: Annotated[str, "What to source."]


class _SchemaEntry(TypedDict):
    name: Annotated[str, "For `stopadvisor schema NAME`."]
    describes: Annotated[str, "Which command prints such a document, and which file holds one."]


class SchemaListDocument(Document):
    """`schema --json`, without a name."""

    schemas: Annotated[list[_SchemaEntry], "All there are."]


def error_document(kind: str, message: str, exit_code: int) -> ErrorDocument:
    """Build the document of an error."""
    return {"error": {"type": kind, "message": message, "exit_code": exit_code}}


def completion_document(shell: str, script: str) -> CompletionDocument:
    """Build the document of a completion script."""
    return fill(CompletionDocument, shell=shell, script=script)


def schema_list_document(described: Mapping[str, str]) -> SchemaListDocument:
    """Build the document of the schemas there are, from what each describes."""
    rows: list[_SchemaEntry] = [
        {"name": name, "describes": describes} for name, describes in described.items()
    ]
    return fill(SchemaListDocument, schemas=rows)
