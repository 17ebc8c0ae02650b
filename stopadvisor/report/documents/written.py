"""What commands print with `--json` that write files: a workload, a run, made-up probes, a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from stopadvisor.report.documents.fields import Document, fill
from stopadvisor.workload.converters import Benchmark, Converted

__all__ = ["WorkloadDocument", "workload_document"]


class WorkloadDocument(Document):
    """`workload --json`."""

    benchmark: Annotated[str, "Its name."]
    source: Annotated[str, "Repository at the hub, or the copy that was read."]
    config: Annotated[str | None, "Configuration of the data set."]
    split: Annotated[str, "Split of the data set."]
    task: Annotated[str, "Kind of its questions."]
    n_questions: Annotated[int, "Questions written."]
    available: Annotated[int, "Questions that could be drawn."]
    left_out: Annotated[int, "Rows that cannot be asked."]
    seed: Annotated[int, "Of the drawing."]
    out: Annotated[str, "The file."]


def workload_document(
    name: str, benchmark: Benchmark, found: Converted, source: str, count: int, seed: int, out: Path
) -> WorkloadDocument:
    """Build the document of `count` questions written to `out`."""
    return fill(
        WorkloadDocument,
        benchmark,
        found,
        benchmark=name,
        source=source,
        n_questions=count,
        left_out=len(found.left_out),
        seed=seed,
        out=out,
    )
