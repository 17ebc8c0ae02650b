"""What `run` prints: an answered workload as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from stopadvisor.policy.requests import OnStop, ThinkingMode
from stopadvisor.rules.losses import loss_of
from stopadvisor.serving.answering import AnsweredWorkload
from stopadvisor.serving.recorded_stops import Agreement
from stopadvisor.serving.totals import Escapes, FullComparison

__all__ = ["AgainstProbes", "AnswerSummary", "MeanTokens", "TimedComparison", "summarise"]


@dataclass(frozen=True)
class MeanTokens:
    """Decoded tokens per question."""

    think: float | None
    """Thinking."""
    probe: float | None
    """Probes."""
    visible: float | None
    """Visible answer."""


@dataclass(frozen=True)
class TimedComparison(FullComparison):
    """Stopping against full thinking, with the time it took."""

    timed_questions: int
    """Questions that this call answered both ways."""
    seconds: float | None
    """Wall time with stopping."""
    full_seconds: float | None
    """Wall time without."""
    time_saving_pct: float | None
    """Time saved."""
    unmet: FullComparison
    """The same of questions that had no part in the policy."""


@dataclass(frozen=True)
class AgainstProbes:
    """Real stops against recorded ones."""

    run: str
    """With the recorded probes."""
    questions: int
    """That are in both."""
    differing_stops: int
    """Questions that stop elsewhere."""
    differing_stops_share: float | None
    """Their share."""
    differing_answers: int
    """Questions with another answer."""
    examples: tuple[str, ...]
    """Ids of the first that stop elsewhere."""


@dataclass(frozen=True)
class AnswerSummary:
    """`run --json`: what was answered, and what stopping changed."""

    policy: str
    """Its file."""
    digest: str
    """Its digest."""
    kind: str
    """`stop` or `full-budget`."""
    family: str | None
    """The rule; null for `full-budget`."""
    workload: str
    """File of the questions."""
    model: str
    """What answered."""
    out: str
    """File of the answers."""
    setting: str
    """Eight digits that stand for all that decides an answer."""
    on_stop: OnStop
    """The reply of a stopped question: the `probe`, or a visible `answer`."""
    serving: ThinkingMode | None
    """At a server: `resume` or `overlap`; null where the model runs here."""
    server_saving_pct: float | None
    """Net saving at vLLM's prefix cache of a policy chosen for `kv-fork`, as its calibration
    measured it; null for others."""
    certified: bool
    """Whether the certificate covers these answers."""
    alpha: float | None
    """Of the certificate; null where there is none."""
    loss: str | None
    """What alpha limits, as `lost` or `differs`; null without a certificate."""
    questions: int
    """In the file."""
    new: int
    """Answered by this call."""
    seconds: float
    """Wall time of these."""
    stopped: int
    """Questions that were stopped early."""
    stopped_share: float | None
    """Their share."""
    mean_tokens: MeanTokens
    """Decoded per question."""
    escapes: Escapes
    """Replies that go on reasoning; graded as they stand."""
    labelled: int
    """Questions with gold."""
    accuracy: float | None
    """Share of these that are right."""
    full: TimedComparison | None
    """Only with `--compare-full`: against full thinking."""
    against: AgainstProbes | None
    """Only with `--against`: against recorded probes."""
    remarks: tuple[str, ...]
    """What the reader should know."""
    headline: str = ""
    """First line of the screen."""


def summarise(answered: AnsweredWorkload) -> AnswerSummary:
    """Sum up an answered workload."""
    totals, policy = answered.totals, answered.policy
    certificate = policy.content["certificate"]
    return AnswerSummary(
        policy=str(answered.settings.policy),
        digest=policy.digest,
        kind=policy.kind,
        family=policy.content["family"],
        workload=str(answered.workload),
        model=answered.model,
        out=str(answered.out),
        setting=answered.setting,
        on_stop=answered.on_stop,
        serving=answered.serving,
        server_saving_pct=_server_saving(policy.content),
        certified=answered.certified,
        alpha=answered.alpha,
        loss=None if answered.alpha is None else loss_of(certificate).name,
        questions=totals.questions,
        new=answered.new,
        seconds=round(answered.seconds, 3),
        stopped=totals.stopped,
        stopped_share=totals.stopped_share,
        mean_tokens=MeanTokens(
            totals.mean_think_tokens, totals.mean_probe_tokens, totals.mean_visible_tokens
        ),
        escapes=totals.escapes,
        labelled=totals.labelled,
        accuracy=totals.accuracy,
        full=None if answered.full is None else _timed(answered, answered.full),
        against=_against(str(answered.settings.against), answered.agreement),
        remarks=answered.remarks,
    )


def _server_saving(content: Mapping[str, Any]) -> float | None:
    """Net saving of a policy on the stack that most people have, as its calibration measured it."""
    expected: Mapping[str, Any] = content.get("expected") or {}
    saving: float | None = expected.get("saving_by_serving", {}).get("prefix-cache")
    return saving if content.get("serving") == "kv-fork" else None


def _timed(answered: AnsweredWorkload, full: FullComparison) -> TimedComparison:
    timed = answered.timed_questions
    return TimedComparison(
        **{each.name: getattr(full, each.name) for each in fields(full)},
        timed_questions=timed,
        seconds=round(answered.seconds, 3) if timed else None,
        full_seconds=round(answered.full_seconds, 3) if timed else None,
        time_saving_pct=answered.time_saving_pct,
        unmet=answered.full_of_unseen,
    )


def _against(run: str, agreement: Agreement | None) -> AgainstProbes | None:
    if agreement is None:
        return None
    return AgainstProbes(
        run=run,
        questions=agreement.questions,
        differing_stops=agreement.differing_stops,
        differing_stops_share=agreement.differing_stops_share,
        differing_answers=agreement.differing_answers,
        examples=agreement.examples,
    )
