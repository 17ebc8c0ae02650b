"""The page that was written, as a result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["WrittenPage"]


@dataclass(frozen=True)
class WrittenPage:
    """`report --json`: a report on disk."""

    run: Path
    """Where the probes are."""
    report: Path
    """The file."""
    bytes: int
    """Its size."""
    protocol: str
    """`deploy` or `paper`."""
    certified: bool | None
    """Whether `calibrate` certified a rule; null before it."""
    remarks: tuple[str, ...]
    """What could not be shown, and why."""
