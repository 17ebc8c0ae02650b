"""What `probe --json` and `preflight --json` print: what was collected, and what was checked."""

from __future__ import annotations

from typing import Annotated, NotRequired, TypedDict

from stopadvisor.collection.cues import CueComparison
from stopadvisor.collection.preflight import PreflightReport
from stopadvisor.collection.probing import ProbeSummary
from stopadvisor.report.documents.parts import SCHEMA, PartCounts

__all__ = ["PreflightDocument", "ProbeDocument", "preflight_document", "probe_document"]


class ProbeDocument(TypedDict):
    """`probe --json`."""

    schema: Annotated[int, "Now 1; raised when a program that reads this has to change."]
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


class PreflightDocument(TypedDict):
    """`preflight --json` and `preflight.json`."""

    schema: Annotated[int, "Now 1; raised when a program that reads this has to change."]
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
    plan, split = summary.run.plan, summary.split
    return {
        "schema": SCHEMA,
        "run": str(summary.run.path),
        "questions": summary.n_questions,
        "traces": summary.n_traces,
        "new": summary.n_new,
        "budgets": list(plan.budgets),
        "max_think": plan.max_think,
        "truncated_share": summary.truncated_share,
        "seconds": round(summary.seconds, 3),
        "split": {
            "fit": split["fit"],
            "calibration": split["calibration"],
            "test": split["test"],
        },
    }


def preflight_document(report: PreflightReport, cues: CueComparison | None) -> PreflightDocument:
    """Build the document of `preflight --json`."""
    return {
        "schema": SCHEMA,
        "status": report.status,
        "checks": [
            {"name": c.name, "status": c.status, "detail": c.detail, "advice": c.advice}
            for c in report.checks
        ],
        "agreement": report.agreement,
        "examples": [
            {"id": e.id, "natural": e.natural, "forced": e.forced} for e in report.examples
        ],
        "n_questions": report.n_questions,
        "cues": None if cues is None else _cue_table(cues),
    }


def _cue_table(cues: CueComparison) -> _CueTable:
    return {
        "n_questions": cues.n_questions,
        "natural_accuracy": cues.natural_accuracy,
        "rows": [
            {
                "name": row.name,
                "cue": row.cue,
                "status": row.status,
                "forced_accuracy": row.forced_accuracy,
                "ci95": list(row.ci95),
                "agreement": row.agreement,
                "mean_probe_tokens": row.mean_probe_tokens,
                "mean_think_tokens": row.mean_think_tokens,
                "same_traces": row.same_traces,
            }
            for row in cues.rows
        ],
    }
