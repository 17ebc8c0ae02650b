"""What commands print that write files: a benchmark, samples, made-up probes, a profile, a page.

Formats documents and computes nothing.
"""

from __future__ import annotations

from typing import TextIO

from stopadvisor.report.documents.profile_serving import GoodputFields, ProfileServingDocument
from stopadvisor.report.documents.written import WorkloadDocument
from stopadvisor.report.headline import gains, goodput_headline
from stopadvisor.report.screen import Screen
from stopadvisor.report.words import number, percent, plural, shell_quote

__all__ = ["show_profile", "show_workload"]


def show_workload(document: WorkloadDocument, out: TextIO) -> None:
    """Print which benchmark was written, and from where."""
    screen = Screen(out)
    count = plural(document["n_questions"], "question")
    screen.headline(f"{count} of {document['benchmark']}, task {document['task']}.")
    source = f"{document['source']}, split {document['split']}"
    screen.facts(
        [
            ("written to", document["out"]),
            ("drawn from", f"{document['available']} of {source}"),
            ("seed", str(document["seed"])),
        ]
    )
    screen.command(f"stopadvisor preflight {shell_quote(document['out'])} --model MODEL")


def show_profile(document: ProfileServingDocument, path: str, out: TextIO) -> None:
    """Print the seconds that were measured, and where they are kept."""
    screen = Screen(out)
    goodput = document["goodput"]
    if goodput is None:
        screen.headline(f"{document['model']} on {document['device']}")
    else:
        screen.headline(goodput_headline(goodput), "good" if gains(goodput) else "doubtful")
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
    if goodput is not None:
        _show_goodput(goodput, screen)
    screen.table(
        "Decoding, by requests in flight",
        ["at once", "µs per token", "KV block-seconds per token"],
        [
            (str(row["batch"]), f"{1e6 * row['seconds']:.1f}", number(row["kv_block_seconds"]))
            for row in document["decoded_by_batch"]
        ],
        left=0,
    )
    if document["rows"]:
        _show_questions(document, screen)
    screen.command(f"stopadvisor assess RUN --serving-profile {shell_quote(path)}")


def _show_goodput(goodput: GoodputFields, screen: Screen) -> None:
    limits = {name: limit for name, limit in goodput["slo"].items() if limit is not None}
    screen.table(
        "The highest rate at which "
        + ", ".join(f"{name} is within {limit:g} s" for name, limit in limits.items())
        + " for 99 of 100",
        ["", "questions/s", "decoded", "at once", "KV block-seconds", "blocks met"],
        [
            (
                name,
                f"{arm['rate']:.3g}",
                f"{arm['decoded']:.0f}",
                f"{arm['in_flight']:.1f}",
                number(arm["kv_block_seconds"]),
                f"{arm['met']} of {arm['blocks']}",
            )
            for name, arm in (("full thinking", goodput["full"]), ("policy", goodput["stopped"]))
        ],
    )


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
