"""What `diff` and `promote` print: what changed between two policies, and which is in use now.

Formats their documents and computes nothing.
"""

from __future__ import annotations

from typing import TextIO

from stopadvisor.report.documents.diff import DiffDocument
from stopadvisor.report.documents.promote import PromoteDocument
from stopadvisor.report.text.screen import Screen
from stopadvisor.report.words import plural, promised, shell_quote

__all__ = ["show_diff", "show_promotion"]


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


def show_promotion(document: PromoteDocument, out: TextIO) -> None:
    """Print what is in use now."""
    screen = Screen(out)
    same = document["previous_digest"] == document["digest"]
    said = "is in use already" if same else "is in use now"
    screen.headline(f"{document['policy']} {said}.", "good")
    alpha = document["alpha"]
    promise = "none: it never stops" if alpha is None else f"at most {promised(alpha)} lost"
    rows = [
        ("promise", document.get("promise", promise)),
        ("served as", f"{document['current']}, a copy of it"),
        ("digest", f"{document['digest'][:16]}..."),
    ]
    back = document["previous_policy"]
    if back is not None and not same:
        rows.append(("before", back))
    screen.facts(rows)
    if back is not None and not same:
        screen.command(f"stopadvisor promote {shell_quote(back)}", "way back")
