"""What `probe --json` and `preflight --json` print: what was collected, and what was checked."""

from __future__ import annotations

from typing import Annotated, NotRequired, TypedDict

from stopadvisor.collection.cues import CueComparison
from stopadvisor.collection.preflight import PreflightReport
from stopadvisor.collection.probing import ProbeSummary
from stopadvisor.report.documents.fields import Document, fill
from stopadvisor.report.documents.parts import PartCounts

__all__ = ["PreflightDocument", "ProbeDocument", "preflight_document", "probe_document"]


class ProbeDocument(Document):
    """`probe --json`."""

    run: Annotated[str, "Where the probes are."]
    questions: Annotated[int, "In the run."]
    traces: Annotated[int, "In the run."]
    new: Annotated[int, "Traces that this call added."]
    budgets: Annotated[list[int], "Thinking tokens at each checkpoint."]
    max_think: Annotated[int, "Cap on thinking tokens."]
    truncated_share: Annotated[float, "Share of the traces that were cut off."]
    seconds: Annotated[float, "That this call took."]
    split: Annotated[PartCounts, "Questions in each part."]


class _CheckFields(TypedDict):
    name: Annotated[str, "What was tried."]
    status: Annotated[str, "`pass`, `warn` or `fail`."]
    detail: Annotated[str, "What was seen."]
    advice: Annotated[str, "What to do about it; empty when it passed."]


class _CueExampleFields(TypedDict):
    id: Annotated[str, "Of the question."]
    natural: Annotated[str, "The answer after full thinking."]
    forced: Annotated[str, "The forced answer."]


class _CueFields(TypedDict):
    name: Annotated[str, "Of the cue."]
    cue: Annotated[str, "Its text."]
    status: Annotated[str, "`pass`, `warn` or `fail`."]
    forced_accuracy: Annotated[float, "Accuracy of forced answers at the end of thinking."]
    ci95: Annotated[list[float], "Its exact interval."]
    agreement: Annotated[float | None, "Share of them that are the natural answers."]
    mean_probe_tokens: Annotated[float, "Tokens of a forced answer."]
    mean_think_tokens: Annotated[float, "Tokens of thinking."]
    same_traces: Annotated[float, "Share of the traces that are those of the first cue."]


class _CueTable(TypedDict):
    n_questions: Annotated[int, "Fit questions asked."]
    natural_accuracy: Annotated[float, "Accuracy of the natural answers."]
    rows: Annotated[list[_CueFields], "One for each cue."]


class PreflightDocument(Document):
    """`preflight --json` and `preflight.json`."""

    status: Annotated[str, "`pass`, `warn` or `fail`: the worst of the checks."]
    checks: Annotated[list[_CheckFields], "What was tried."]
    agreement: Annotated[
        float | None, "Share of forced answers at the end of thinking that are the natural ones."
    ]
    examples: Annotated[list[_CueExampleFields], "Some that are not."]
    n_questions: Annotated[int, "Fit questions asked."]
    cues: NotRequired[
        Annotated[_CueTable | None, "With `--compare-cues`, null otherwise; not in the file."]
    ]


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
        split=fill(PartCounts, summary.split),
    )


def preflight_document(report: PreflightReport, cues: CueComparison | None) -> PreflightDocument:
    """Build the document of `preflight --json`."""
    return fill(PreflightDocument, report, cues=cues)
