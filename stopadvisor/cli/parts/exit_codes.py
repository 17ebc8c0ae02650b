"""What each exit code means, and what any command with `--json` prints where it fails.

Stands alone, so that `--help` loads nothing else for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

__all__ = ["EXIT_CODES", "CommandError", "FailedCommand"]

EXIT_CODES = {
    0: "ok",
    1: "failed in the middle of the job",
    2: "wrong usage or unusable input: one line on stderr says what is wrong",
    3: "nothing was certified; the policy that was written never stops",
    4: "fresh probes contradict the certificate",
    5: "preflight failed: measuring would mislead",
    6: "audits show that the promise is broken",
    7: "fresh probes neither confirm nor contradict: the gate stays shut",
    8: "audits give an early warning, or show a change",
    130: "interrupted; what was finished is kept, and the same command continues there",
}


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
