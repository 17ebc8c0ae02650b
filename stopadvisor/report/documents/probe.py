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


class _CheckFields(TypedDict):
    name: Annotated[str, "What was tried."]
    status: Annotated[str, "`pass`, `warn` or `fail`."]
    detail: Annotated[str, "What was seen."]
    advice: Annotated[str, "What to do about it; empty when it passed."]


class _CueExampleFields(TypedDict):
    id: Annotated[str, "Of the question."]
    natural: Annotated[str, "The answer after full thinking."]
    forced: Annotated[str, "The forced answer."]


class _WrongFields(TypedDict):
    id: Annotated[str, "Of the question."]
    question: Annotated[str, "Its first characters."]
    gold: Annotated[str, "The right answer."]
    answer: Annotated[str | None, "What was read out of the reply; null where nothing could be."]


class _CueFields(TypedDict):
    name: Annotated[str, "Of the cue."]
    cue: Annotated[str, "Its text."]
    status: Annotated[str, "`pass`, `warn` or `fail`."]
    forced_accuracy: Annotated[
        float | None, "Accuracy of forced answers at the end of thinking; null without any gold."
    ]
    ci95: Annotated[list[float] | None, "Its exact interval."]
    agreement: Annotated[float | None, "Share of them that are the natural answers."]
    mean_probe_tokens: Annotated[float, "Tokens of a forced answer."]
    mean_think_tokens: Annotated[float, "Tokens of thinking."]
    same_traces: Annotated[float, "Share of the traces that are those of the first cue."]


class _MarkerWordFields(TypedDict):
    text: Annotated[str, "The word."]
    ids: Annotated[list[list[int]], "Token ids with which it begins a sentence."]
    sentences: Annotated[int, "That begin with it."]
    per_1000: Annotated[float, "Sentences per 1,000 thinking tokens."]
    median_place: Annotated[float | None, "Share of the trace before it, median; null if unseen."]
    without: Annotated[float, "Share of the traces in which it begins no sentence."]
    used: Annotated[bool, "`--schedule marker` probes before it."]


class _MarkerWordTable(TypedDict):
    words: Annotated[list[_MarkerWordFields], "The most frequent first."]
    n_traces: Annotated[int, "Traces they were counted in."]
    n_tokens: Annotated[int, "Thinking tokens of these."]
    without: Annotated[float, "Share of the traces that hold none of those used."]


class _ProbeCostFields(TypedDict):
    probes: Annotated[float, "Probes a question."]
    decoded_tokens: Annotated[float, "Tokens of their answers, a question."]
    share_of_thinking: Annotated[float | None, "These over its thinking tokens."]


class _CueTable(TypedDict):
    n_questions: Annotated[int, "Fit questions asked."]
    natural_accuracy: Annotated[
        float | None, "Accuracy of the natural answers; null without any gold."
    ]
    rows: Annotated[list[_CueFields], "One for each cue."]


class PreflightDocument(Document):
    """`preflight --json` and `preflight.json`."""

    status: Annotated[str, "`pass`, `warn` or `fail`: the worst of the checks."]
    checks: Annotated[list[_CheckFields], "What was tried."]
    agreement: Annotated[
        float | None, "Share of forced answers at the end of thinking that are the natural ones."
    ]
    examples: Annotated[list[_CueExampleFields], "Some that are not."]
    accuracy: Annotated[
        float | None,
        "Share of right answers at the end of thinking, of the questions with gold; null without "
        "any.",
    ]
    wrong: Annotated[list[_WrongFields], "Some that are not."]
    n_questions: Annotated[int, "Fit questions asked."]
    marker_words: Annotated[_MarkerWordTable, "How sentences begin where the model turns back."]
    cost: Annotated[
        _ProbeCostFields | None, "Expected of the probes; null where a pilot has to settle them."
    ]
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
        markers=[word["text"] for word in run.manifest.get("markers", [])],
        split=fill(PartCounts, summary.split),
    )


def preflight_document(report: PreflightReport, cues: CueComparison | None) -> PreflightDocument:
    """Build the document of `preflight --json`."""
    return fill(PreflightDocument, report, cues=cues)
