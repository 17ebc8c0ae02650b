"""What any command prints as JSON where it ends in an error."""

from __future__ import annotations

from typing import Annotated, TypedDict

__all__ = ["ErrorDocument", "error_document"]


class _Error(TypedDict):
    type: Annotated[str, "Its class."]
    message: Annotated[str, "One line that says what is wrong, and what is required."]
    exit_code: Annotated[int, "With which the command ended."]


class ErrorDocument(TypedDict):
    """Any command with `--json`, where it ends in an error."""

    error: Annotated[_Error, "What went wrong."]


def error_document(kind: str, message: str, exit_code: int) -> ErrorDocument:
    """Build the document of an error."""
    return {"error": {"type": kind, "message": message, "exit_code": exit_code}}
