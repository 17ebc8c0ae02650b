"""A result in words, before it is drawn: headline, facts, tables and the next command.

Each result has a function in `sheets/`; `screen.py` and `html/` draw the `Sheet` it returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Fact", "Section", "Sheet", "Tone"]

Tone = Literal["good", "doubtful", "bad"]
Fact = tuple[str, str]
"""A name and a value."""


@dataclass(frozen=True)
class Section:
    """A title, then a table or facts, then paragraphs; each part may be missing."""

    title: str = ""
    header: tuple[str, ...] = ()
    """Names of the columns; without any, each row is a fact."""
    rows: tuple[tuple[str, ...], ...] = ()
    texts: tuple[str, ...] = ()
    """Paragraphs below the rows."""
    left: int = 1
    """Number of left-aligned columns; a last column without a name is left-aligned too."""


@dataclass(frozen=True)
class Sheet:
    """One result, for people."""

    headline: str
    tone: Tone | None = None
    facts: tuple[Fact, ...] = ()
    command: str | None = None
    """A command line to copy; None if there is nothing to do next."""
    command_name: str = "next"
    """Label of the command."""
    sections: tuple[Section, ...] = ()
    footnote: str = ""
    """A dim last line."""
