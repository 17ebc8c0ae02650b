"""What `import --json` prints: the run that recorded probes became.  It shows no outcome."""

from __future__ import annotations

from typing import Annotated

from stopadvisor.report.documents.fields import Document, fill
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.recording import Recording

__all__ = ["ImportDocument", "import_document"]


class ImportDocument(Document):
    """`import --json`."""

    run: Annotated[str, "The run directory."]
    source: Annotated[str, "The file that was read."]
    n_questions: Annotated[int, "Different questions."]
    n_traces: Annotated[int, "Lines: traces, of which a question may have several."]
    n_truncated: Annotated[int, "Traces whose thinking was cut."]
    n_probes: Annotated[int, "Forced answers."]
    n_graded: Annotated[int, "Labels that were not recorded, and come from gold."]
    n_ungraded: Annotated[int, "Traces with neither labels nor gold."]
    budgets: Annotated[
        list[int] | None,
        "Thinking tokens at each checkpoint; null where questions have positions of their own.",
    ]
    entropy_source: Annotated[
        str, "`full`, or `none` where no log-probability and no entropy was recorded."
    ]
    max_think: Annotated[int, "Cap on thinking; the longest trace where none was named."]
    suffix_tokens: Annotated[int, "Tokens of closer and cue in front of each forced answer."]
    model: Annotated[str | None, "What a policy made of it is bound to; null for no model."]


def import_document(
    run: RunDirectory, recording: Recording, suffix_tokens: int, model: str | None
) -> ImportDocument:
    """Build the document of a recording that was written to `run`."""
    records = recording.records
    return fill(
        ImportDocument,
        recording,
        run=run.path,
        source=recording.path,
        n_questions=len({record.key for record in records}),
        n_traces=len(records),
        n_truncated=sum(record.finish == "length" for record in records),
        n_probes=sum(len(record.checkpoints) for record in records),
        budgets=recording.budgets or None,
        max_think=run.plan.max_think,
        suffix_tokens=suffix_tokens,
        model=model,
    )
