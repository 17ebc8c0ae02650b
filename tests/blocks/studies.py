"""Blocks about the studies: what each answers and needs, and the columns of its tables."""

from __future__ import annotations

from stopadvisor.studies.registry import STUDIES, outline_of
from stopadvisor.studies.tables import StudyOptions
from tests.generate import Block, table

__all__ = ["BLOCKS"]


def _studies() -> str:
    rows = []
    for name, entry in STUDIES.items():
        needs = [entry.needs, *(f"`--set {key}={what}`" for key, what in entry.options.items())]
        rows.append((f"`{name}`", entry.help, outline_of(name).paper, "; ".join(needs)))
    return table(("study", "what it answers", "in the paper", "needs"), rows)


def _tables() -> str:
    parts = []
    for name in STUDIES:
        outline = outline_of(name)
        rows = [
            (
                f"`{kind.name}`",
                outline.title(kind, StudyOptions()),
                ", ".join(f"`{c.name}`" + (f" ({c.unit})" if c.unit else "") for c in kind.columns),
            )
            for kind in outline.tables
        ]
        parts.append(f"### `{name}`\n\n{table(('table', 'title', 'columns'), rows)}")
    return "\n\n".join(parts)


BLOCKS: dict[str, Block] = {"studies": _studies, "study-tables": _tables}
