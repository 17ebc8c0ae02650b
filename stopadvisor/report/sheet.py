"""What a result looks like before anyone draws it: a headline, facts, sections, one next command.

A function a result makes its `Sheet`; the screen (`screen.py`) and the page (`html/`) draw it.
Knows neither.
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
    """Names of the columns.  Without them each row is a fact."""
    rows: tuple[tuple[str, ...], ...] = ()
    texts: tuple[str, ...] = ()
    """Paragraphs below the rows."""
    left: int = 1
    """Columns aligned to the left, counted from the first; a last one without a name is, too."""


@dataclass(frozen=True)
class Sheet:
    """One result, for people."""

    headline: str
    tone: Tone | None = None
    facts: tuple[Fact, ...] = ()
    command: str | None = None
    """A command line to copy; None where nothing follows."""
    command_name: str = "next"
    """What it is."""
    sections: tuple[Section, ...] = ()
    footnote: str = ""
    """A quiet last line."""
