"""What `inspect A B` prints: what changed between two policies.

Formats its document and computes nothing.
"""

from __future__ import annotations

from typing import TextIO

from stopadvisor.report.documents.diff import DiffDocument
from stopadvisor.report.screen import Screen
from stopadvisor.report.words import plural

__all__ = ["show_diff"]


def show_diff(document: DiffDocument, out: TextIO) -> None:
    """Print the changes, one a line where they fit."""
    screen = Screen(out)
    changes = document["changes"]
    if document["same"]:
        screen.headline("The same policy.", "good")
    elif not changes:
        screen.headline("Two calibrations of the same rule: nothing differs in what it does.")
    else:
        stops = "both stop at the same places" if document["same_stops"] else "they stop elsewhere"
        screen.headline(f"B differs from A in {plural(len(changes), 'point')}; {stops}.")
    screen.facts(
        (name, f"{side['policy']} (digest {side['digest'][:8]}, of {side['created'][:10]})")
        for name, side in (("A", document["a"]), ("B", document["b"]))
    )
    if changes:
        screen.title("What it is in A -> in B")
        screen.facts((row["what"], f"{row['before']} -> {row['after']}") for row in changes)
