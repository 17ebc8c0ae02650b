"""What `import --json` prints of a program's log: the workload that it became."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from stopadvisor.report.documents.fields import Document, fill
from stopadvisor.workload.imports.gather import Gathered
from stopadvisor.workload.questions import Workload

__all__ = ["ImportLogDocument", "import_log_document"]


class ImportLogDocument(Document):
    """`import --json`, of all formats but `probes`."""

    out: Annotated[str, "The workload."]
    format: Annotated[str, "As it was named."]
    sources: Annotated[list[str], "The files that were read."]
    n_questions: Annotated[int, "Different questions."]
    n_gold: Annotated[int, "Those with gold."]
    tasks: Annotated[dict[str, int], "How many questions of each kind of answer."]
    n_traces: Annotated[int, "Recorded traces whose thinking is known."]
    n_cut: Annotated[int, "Those whose thinking was cut, so that there is no reply."]
    n_without_thinking: Annotated[int, "Replies whose thinking is not known."]
    n_untraced: Annotated[int, "Questions without a recorded trace."]
    n_left_out: Annotated[int, "Replies, questions or golds of the log that were not taken."]


def import_log_document(
    kind: str, sources: Sequence[Path], found: Gathered, workload: Workload
) -> ImportLogDocument:
    """Build the document of a log that was written as `workload`."""
    return fill(
        ImportLogDocument,
        found,
        out=workload.path,
        format=kind,
        sources=[str(source) for source in sources],
        n_questions=len(workload.questions),
        tasks=dict(Counter(question.task for question in workload.questions)),
        n_without_thinking=len(found.without_thinking),
        n_left_out=len(found.left_out),
    )
