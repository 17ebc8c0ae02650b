"""What `workload --json` prints: the benchmark that was written as a workload."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from stopadvisor.report.documents.parts import SCHEMA
from stopadvisor.workload.converters import Benchmark, Converted

__all__ = ["WorkloadDocument", "workload_document"]


class WorkloadDocument(TypedDict):
    """`workload --json`."""

    schema: int
    """Now 1; raised when a program that reads this has to change."""
    benchmark: str
    """Its name."""
    source: str
    """Repository at the hub, or the copy that was read."""
    config: str | None
    """Configuration of the data set."""
    split: str
    """Split of the data set."""
    task: str
    """Kind of its questions."""
    n_questions: int
    """Questions written."""
    available: int
    """Questions that could be drawn."""
    left_out: int
    """Rows that cannot be asked."""
    seed: int
    """Of the drawing."""
    out: str
    """The file."""


def workload_document(
    name: str, benchmark: Benchmark, found: Converted, source: str, count: int, seed: int, out: Path
) -> WorkloadDocument:
    """Build the document of `count` questions written to `out`."""
    return {
        "schema": SCHEMA,
        "benchmark": name,
        "source": source,
        "config": benchmark.config,
        "split": benchmark.split,
        "task": benchmark.task,
        "n_questions": count,
        "available": found.available,
        "left_out": len(found.left_out),
        "seed": seed,
        "out": str(out),
    }
