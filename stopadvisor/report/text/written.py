"""What `profile-serving` prints; formats its document and computes nothing."""

from __future__ import annotations

from typing import TextIO

from stopadvisor.report.documents.profile_serving import ProfileServingDocument
from stopadvisor.report.screen import Screen
from stopadvisor.report.words import percent, shell_quote

__all__ = ["show_profile"]


def show_profile(document: ProfileServingDocument, path: str, out: TextIO) -> None:
    """Print the seconds that were measured, and where they are kept."""
    screen = Screen(out)
    screen.headline(f"{document['model']} on {document['device']}")
    seconds = document["per_token_seconds"]
    screen.facts(
        [
            ("request", f"{1e6 * document['per_request_seconds']:.0f} µs each"),
            ("prefilled", f"{1e6 * seconds['prefilled']:.2f} µs per token"),
            ("cached", f"{1e6 * seconds['cached']:.3f} µs per token that is read again"),
            (
                "decoded",
                f"{1e6 * seconds['decoded']:.1f} µs per token, {document['at_batch']} at once",
            ),
            ("fit", f"misses {percent(100 * (document['misfit'] or 0))} of the seconds measured"),
            ("profile", path),
        ]
    )
    screen.table(
        "Decoding, by requests in flight",
        ["at once", "µs per token"],
        [
            (str(row["batch"]), f"{1e6 * row['seconds']:.1f}")
            for row in document["decoded_by_batch"]
        ],
        left=0,
    )
    if document["rows"]:
        _show_questions(document, screen)
    screen.command(f"stopadvisor assess RUN --serving-profile {shell_quote(path)}")


def _show_questions(document: ProfileServingDocument, screen: Screen) -> None:
    screen.table(
        "Per question, probes included; nothing is stopped",
        ["batch", "checkpoints", "seconds", "std", "peak memory"],
        [
            (
                str(row["batch"]),
                str(row["checkpoints"]) if row["checkpoints"] else "none",
                f"{row['seconds_per_question']:.3g}",
                "-" if row["std"] is None else f"{row['std']:.2g}",
                f"{row['peak_memory_gb']:.2f} GB",
            )
            for row in document["rows"]
        ],
        left=0,
    )
