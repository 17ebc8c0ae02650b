"""Studies for people: their list, one's tables, and what was left out.

Reads the documents that `studies.write` makes, so that screen and file say the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from stopadvisor.cli.screen import Screen, number, percent, share

__all__ = ["show_list", "show_skipped", "show_study"]

Document = Mapping[str, Any]

_RUN = "run"
"""The column that names the run; said once where there is only one."""


def show_list(rows: Sequence[Document], out: TextIO) -> None:
    """Print the studies there are."""
    screen = Screen(out)
    screen.headline("Studies over finished runs: stopadvisor study NAME RUN...")
    screen.facts((row["name"], row["help"]) for row in rows)
    special = [row for row in rows if row["needs"] != "one run"]
    screen.items("What some need", [f"{row['name']}: {row['needs']}." for row in special])
    own = [
        f"{row['name']}: --set {name}={text}"
        for row in rows
        for name, text in (
            (key, value.replace(": ", "  ", 1)) for key, value in row["options"].items()
        )
    ]
    if own:
        screen.items("Options of their own", own)


def show_study(document: Document, out: TextIO) -> None:
    """Print the tables of one study."""
    screen = Screen(out)
    screen.headline(f"Study: {document['study']}")
    runs = document["runs"]
    facts = [("run" if len(runs) == 1 else "runs", ", ".join(runs))]
    if document["paper"]:
        facts.append(("paper", document["paper"]))
    facts.append(("protocol", " and ".join(document["protocols"])))
    screen.facts(facts)
    for table in document["tables"]:
        _table(screen, table, alone=len(runs) == 1)
    if document["remarks"]:
        screen.items("Remarks", document["remarks"])
    screen.title("")


def _table(screen: Screen, table: Document, *, alone: bool) -> None:
    columns = [c for c in table["columns"] if not (alone and c["name"] == _RUN)]
    rows = [[_cell(row[c["name"]], c["unit"]) for c in columns] for row in table["rows"]]
    words = [any(isinstance(row[c["name"]], str) for row in table["rows"]) for c in columns]
    left = words.index(False) if False in words else len(words)
    screen.table(table["title"], [c["title"] for c in columns], rows, left=max(left, 1))
    if table["note"]:
        screen.text(table["note"])


def _cell(value: Any, unit: str) -> str:
    """A value as people read it; a hyphen where there is none."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if unit == "%":
        return percent(value)
    if unit == "pp":
        return f"{value:+.1f}"
    if unit == "share":
        return share(value)
    if unit == "tokens":
        return f"{value:.0f}"
    return str(value) if isinstance(value, int) else number(value)


def show_skipped(skipped: Sequence[Document], out: TextIO) -> None:
    """Print which studies were left out; nothing where none was."""
    if skipped:
        screen = Screen(out)
        screen.items("Skipped", [f"{row['study']}: {row['reason']}" for row in skipped])
