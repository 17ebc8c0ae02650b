"""What the program itself prints as JSON: an error, a shell's script, its samples and schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypedDict

from stopadvisor.report.documents.fields import Document, fill

__all__ = [
    "CompletionDocument",
    "ErrorDocument",
    "SamplesDocument",
    "SchemaListDocument",
    "completion_document",
    "error_document",
    "samples_document",
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


class SamplesDocument(Document):
    """`samples --json`."""

    out: Annotated[str, "The folder that was written."]
    model: Annotated[str, "The model's folder in it."]
    workloads: Annotated[list[str], "The workload files in it."]


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


def samples_document(folder: Path, model: str, workloads: Sequence[str]) -> SamplesDocument:
    """Build the document of the samples that were written, from their names in the folder."""
    return fill(
        SamplesDocument,
        out=folder,
        model=folder / model,
        workloads=[folder / name for name in workloads],
    )


def schema_list_document(described: Mapping[str, str]) -> SchemaListDocument:
    """Build the document of the schemas there are, from what each describes."""
    rows: list[_SchemaEntry] = [
        {"name": name, "describes": describes} for name, describes in described.items()
    ]
    return fill(SchemaListDocument, schemas=rows)
