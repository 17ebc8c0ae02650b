"""What `run --json` prints: what was answered, and what stopping changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from stopadvisor.report.documents.fields import Document, fill
from stopadvisor.report.headline import run_headline
from stopadvisor.report.words import COMMON_STACK
from stopadvisor.rules.losses import loss_of
from stopadvisor.serving.answering import AnsweredWorkload
from stopadvisor.serving.totals import FullComparison

__all__ = ["RunDocument", "run_document"]


class _MeanTokens(TypedDict):
    think: Annotated[float | None, "Thinking."]
    probe: Annotated[float | None, "Probes."]
    visible: Annotated[float | None, "Visible answer."]


class _DepthFields(TypedDict):
    least: Annotated[int, "Thinking tokens at the stop, at least."]
    most: Annotated[int | None, "At most; null for the last group."]
    stopped: Annotated[int, "Replies that were stopped there."]
    escaped: Annotated[int, "Those of them that go on reasoning."]
    share: Annotated[float, "Their share."]


class _EscapeFields(TypedDict):
    replies: Annotated[int, "Stopped replies in which reasoning goes on after the forced close."]
    tokens: Annotated[int, "Their reasoning; counted in `visible`, or `probe`."]
    by_depth: Annotated[list[_DepthFields], "Stopped replies by thinking tokens at the stop."]


class _StoppedAgainstFull(TypedDict):
    questions: Annotated[int, "Answered both with stopping and without."]
    decoded_tokens: Annotated[int, "Tokens with stopping, those of the probes included."]
    full_decoded_tokens: Annotated[int, "Tokens without."]
    think_tokens: Annotated[int, "Thinking tokens with stopping."]
    full_think_tokens: Annotated[int, "Thinking tokens without."]
    differing: Annotated[
        int, "Stopped questions whose reply is not what full thinking answers, in normal form."
    ]
    differing_share: Annotated[float | None, "Their share of the questions."]
    differing_ci95: Annotated[list[float] | None, "Its exact interval."]
    labelled: Annotated[int, "Questions with gold; what follows is of these."]
    correct: Annotated[int, "Right with stopping."]
    full_correct: Annotated[int, "Right without."]
    lost: Annotated[int, "Right without, wrong with stopping."]
    token_saving_pct: Annotated[float | None, "Tokens saved."]
    think_saving_pct: Annotated[float | None, "Thinking tokens saved."]
    accuracy: Annotated[float | None, "Accuracy with stopping."]
    full_accuracy: Annotated[float | None, "Accuracy without."]
    risk: Annotated[float | None, "Share lost."]
    risk_ci95: Annotated[list[float] | None, "Its exact interval."]


class _TimedFields(TypedDict):
    timed_questions: Annotated[int, "Questions that this call answered both ways."]
    seconds: Annotated[float | None, "Wall time with stopping."]
    full_seconds: Annotated[float | None, "Wall time without."]
    time_saving_pct: Annotated[float | None, "Time saved."]
    unmet: Annotated[_StoppedAgainstFull, "The same of questions that made no part of the policy."]


class _FullFields(_TimedFields, _StoppedAgainstFull):
    """Stopping against full thinking, with what it took."""


class _AgainstFields(TypedDict):
    run: Annotated[str, "With the recorded probes."]
    questions: Annotated[int, "That stand in both."]
    differing_stops: Annotated[int, "Questions that stop elsewhere."]
    differing_stops_share: Annotated[float | None, "Their share."]
    differing_answers: Annotated[int, "Questions with another answer."]
    examples: Annotated[list[str], "Ids of the first that stop elsewhere."]


class _RunFields(Document):
    policy: Annotated[str, "Its file."]
    digest: Annotated[str, "Its digest."]
    kind: Annotated[str, "`stop` or `full-budget`."]
    family: Annotated[str | None, "The rule; null for `full-budget`."]
    workload: Annotated[str, "File of the questions."]
    model: Annotated[str, "What answered."]
    out: Annotated[str, "File of the answers."]
    setting: Annotated[str, "Eight digits that stand for all that decides an answer."]
    on_stop: Annotated[str, "The reply of a stopped question: the `probe`, or a visible `answer`."]
    serving: Annotated[
        str | None, "At a server: `resume` or `overlap`; null where the model runs here."
    ]
    server_saving_pct: Annotated[
        float | None,
        "Net saving at vLLM's prefix cache of a policy chosen for `kv-fork`, as its calibration "
        "measured it; null for others.",
    ]
    certified: Annotated[bool, "Whether the certificate covers these answers."]
    alpha: Annotated[float | None, "Of the certificate; null where there is none."]
    loss: Annotated[
        str | None, "What alpha limits, as `lost` or `differs`; null without a certificate."
    ]
    questions: Annotated[int, "In the file."]
    new: Annotated[int, "Answered by this call."]
    seconds: Annotated[float, "Wall time of these."]
    stopped: Annotated[int, "Questions that were stopped early."]
    stopped_share: Annotated[float | None, "Their share."]
    mean_tokens: Annotated[_MeanTokens, "Decoded per question."]
    escapes: Annotated[_EscapeFields, "Replies that go on reasoning; graded as they stand."]
    labelled: Annotated[int, "Questions with gold."]
    accuracy: Annotated[float | None, "Share of these that are right."]
    full: Annotated[_FullFields | None, "Only with `--compare-full`: against full thinking."]
    against: Annotated[_AgainstFields | None, "Only with `--against`: against recorded probes."]
    remarks: Annotated[list[str], "What the reader should know."]


class RunDocument(_RunFields):
    """`run --json`."""

    headline: Annotated[str, "First line of the screen."]


def run_document(found: AnsweredWorkload) -> RunDocument:
    """Build the document of an answered workload."""
    totals = found.totals
    against, agreement = found.settings.against, found.agreement
    document = fill(
        _RunFields,
        found,
        totals,
        found.policy,
        policy=found.settings.policy,
        loss=None if found.alpha is None else loss_of(found.policy.content["certificate"]).name,
        seconds=round(found.seconds, 3),
        server_saving_pct=_server_saving(found.policy.content),
        mean_tokens={
            "think": totals.mean_think_tokens,
            "probe": totals.mean_probe_tokens,
            "visible": totals.mean_visible_tokens,
        },
        full=None if found.full is None else _full(found, found.full),
        against=None
        if against is None or agreement is None
        else fill(_AgainstFields, agreement, run=against),
    )
    return {**document, "headline": run_headline(document)}


def _server_saving(content: Mapping[str, Any]) -> float | None:
    """Net saving of a policy on the stack that most people have, as its calibration measured it."""
    expected: Mapping[str, Any] = content.get("expected") or {}
    saving: float | None = expected.get("saving_by_serving", {}).get(COMMON_STACK)
    return saving if content.get("serving") == "kv-fork" else None


def _full(found: AnsweredWorkload, full: FullComparison) -> _FullFields:
    """Stopping against not stopping: all questions, and those the policy has never seen."""
    timed = found.timed_questions
    return {
        **_compared(full),
        "timed_questions": timed,
        "seconds": round(found.seconds, 3) if timed else None,
        "full_seconds": round(found.full_seconds, 3) if timed else None,
        "time_saving_pct": found.time_saving_pct,
        "unmet": _compared(found.full_of_unseen),
    }


def _compared(found: FullComparison) -> _StoppedAgainstFull:
    return fill(
        _StoppedAgainstFull,
        found,
        token_saving_pct=found.token_saving_pct if found.questions else None,
        think_saving_pct=found.think_saving_pct if found.questions else None,
    )
