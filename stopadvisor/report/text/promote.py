"""What `promote` prints: which policy is in use now, and the way back.

Formats the document and computes nothing.
"""

from __future__ import annotations

from typing import TextIO

from stopadvisor.report.documents.promote import PromoteDocument
from stopadvisor.report.text.screen import Screen
from stopadvisor.report.words import promised, shell_quote

__all__ = ["show_promotion"]


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
