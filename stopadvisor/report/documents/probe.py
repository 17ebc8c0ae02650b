"""What `probe --json` prints: what was collected."""

from __future__ import annotations

from typing import Annotated

from stopadvisor.collection.probing import ProbeSummary
from stopadvisor.report.documents.fields import Document, fill
from stopadvisor.report.documents.parts import PartCounts

__all__ = ["ProbeDocument", "probe_document"]


class ProbeDocument(Document):
    """`probe --json`."""

    run: Annotated[str, "Where the probes are."]
    questions: Annotated[int, "In the run."]
    traces: Annotated[int, "In the run."]
    new: Annotated[int, "Traces that this call added."]
    schedule: Annotated[str, "`grid`, `stride` or `marker`."]
    budgets: Annotated[
        list[int],
        "Thinking tokens at each checkpoint; of a stride or beside markers, in traces that are so "
        "long.",
    ]
    every: Annotated[int | None, "Distance of the budgets of a stride, null if they were named."]
    markers: Annotated[list[str], "Words before which the run probes; empty unless `marker`."]
    max_think: Annotated[int, "Cap on thinking tokens."]
    truncated_share: Annotated[float, "Share of the traces that were cut off."]
    seconds: Annotated[float, "That this call took."]
    split: Annotated[PartCounts, "Questions in each part."]


def probe_document(summary: ProbeSummary) -> ProbeDocument:
    """Build the document of `probe --json`."""
    run = summary.run
    return fill(
        ProbeDocument,
        summary,
        run.plan,
        run=run.path,
        questions=summary.n_questions,
        traces=summary.n_traces,
        new=summary.n_new,
        seconds=round(summary.seconds, 3),
        markers=[word["text"] for word in run.manifest.get("markers", [])],
        split=fill(PartCounts, summary.split),
    )
