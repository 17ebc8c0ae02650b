"""What the program itself prints as JSON: an error, a shell's script and its samples."""

from __future__ import annotations

from typing import Annotated, TypedDict

from stopadvisor.report.documents.fields import Document, fill

__all__ = ["CompletionDocument", "ErrorDocument", "completion_document", "error_document"]


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


def error_document(kind: str, message: str, exit_code: int) -> ErrorDocument:
    """Build the document of an error."""
    return {"error": {"type": kind, "message": message, "exit_code": exit_code}}


def completion_document(shell: str, script: str) -> CompletionDocument:
    """Build the document of a completion script."""
    return fill(CompletionDocument, shell=shell, script=script)
