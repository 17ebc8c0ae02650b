"""What the program itself prints as JSON: an error, and the script for a shell."""

from __future__ import annotations

from typing import TypedDict

from stopadvisor.report.documents.parts import SCHEMA

__all__ = ["CompletionDocument", "ErrorDocument", "completion_document", "error_document"]


class _Error(TypedDict):
    type: str
    """Its class."""
    message: str
    """One line that says what is wrong, and what is required."""
    exit_code: int
    """With which the command ended."""


class ErrorDocument(TypedDict):
    """Any command with `--json`, where it ends in an error."""

    error: _Error
    """What went wrong."""


class CompletionDocument(TypedDict):
    """`completion --json`."""

    schema: int
    """1."""
    shell: str
    """`bash`, `zsh` or `fish`."""
    script: str
    """What to source."""


def error_document(kind: str, message: str, exit_code: int) -> ErrorDocument:
    """Build the document of an error."""
    return {"error": {"type": kind, "message": message, "exit_code": exit_code}}


def completion_document(shell: str, script: str) -> CompletionDocument:
    """Build the document of a completion script."""
    return {"schema": SCHEMA, "shell": shell, "script": script}
