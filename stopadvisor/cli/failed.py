"""The JSON document of a command that failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

__all__ = ["CommandError", "FailedCommand"]


@dataclass(frozen=True)
class CommandError:
    """Why a command failed."""

    type: str
    """Class of the error."""
    message: str
    """One line: what is wrong, and what is required."""
    exit_code: int
    """Exit code of the command."""


@dataclass(frozen=True)
class FailedCommand:
    """The JSON document of a command that failed."""

    SCHEMA: ClassVar[None] = None

    error: CommandError
    """The reason."""
