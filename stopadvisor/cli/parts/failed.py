"""What any command with `--json` prints where it fails; loaded when that happens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

__all__ = ["CommandError", "FailedCommand"]


@dataclass(frozen=True)
class CommandError:
    """Why a command failed."""

    type: str
    """Its class."""
    message: str
    """One line that says what is wrong, and what is required."""
    exit_code: int
    """With which the command ended."""


@dataclass(frozen=True)
class FailedCommand:
    """The document of a command that failed."""

    SCHEMA: ClassVar[None] = None

    error: CommandError
    """What went wrong."""
