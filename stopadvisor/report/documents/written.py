"""What commands print with `--json` that write files: a workload, a run, made-up probes, a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from stopadvisor.probes.simulation import KINDS, Population
from stopadvisor.report.documents.fields import Document, fill
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.recording import Recording
from stopadvisor.workload.converters import Benchmark, Converted
from stopadvisor.workload.imports.gather import Gathered
from stopadvisor.workload.questions import Workload

__all__ = [
    "ImportDocument",
    "ImportLogDocument",
    "ReportDocument",
    "SimulateDocument",
    "WorkloadDocument",
    "import_document",
    "import_log_document",
    "report_document",
    "simulation_document",
    "workload_document",
]


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


class SimulateDocument(Document):
    """`simulate --json`."""

    simulated: Annotated[bool, "Always true."]
    out: Annotated[str, "Run directory or archive."]
    full_reference: Annotated[str, "What full thinking is in it: `natural` or `last-checkpoint`."]
    n_questions: Annotated[int, "Questions drawn."]
    budgets: Annotated[list[int], "Thinking tokens at each checkpoint."]
    shares: Annotated[
        dict[str, float], "Of each kind of question, as asked for; a draw differs by chance."
    ]
    signal: Annotated[float, "How far the confidence tells right from wrong, in log-odds."]
    seed: Annotated[int, "Of all that is drawn."]


def simulation_document(
    out: Path, population: Population, n_questions: int, seed: int, *, archive: bool
) -> SimulateDocument:
    """Build the document of what was drawn into `out`."""
    return fill(
        SimulateDocument,
        population,
        simulated=True,
        out=out,
        full_reference="last-checkpoint" if archive else "natural",
        n_questions=n_questions,
        shares={kind: population.shares.get(kind, 0.0) for kind in KINDS},
        seed=seed,
    )


class ReportDocument(Document):
    """`report --json`."""

    run: Annotated[str, "Where the probes are."]
    report: Annotated[str, "The file."]
    bytes: Annotated[int, "Its size."]
    protocol: Annotated[str, "`deploy` or `paper`."]
    certified: Annotated[bool | None, "Whether `calibrate` certified a rule; null before it."]
    remarks: Annotated[list[str], "What could not be shown, and why."]


def report_document(
    run: Path,
    page: Path,
    size: int,
    assessment: Mapping[str, Any],
    calibration: Mapping[str, Any] | None,
    remarks: Sequence[str],
) -> ReportDocument:
    """Build the document of a page of `size` bytes that was written."""
    return fill(
        ReportDocument,
        run=run,
        report=page,
        bytes=size,
        protocol=assessment["protocol"],
        certified=None if calibration is None else calibration["certified"],
        remarks=remarks,
    )
