"""What `run` prints and saves: an answered workload as one value.  Knows no screen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stopadvisor.policy.requests import OnStop

__all__ = [
    "AnswerSummary", "ClimbSummary", "FullComparison", "MeanTokens", "RungShare", "TimedComparison",
]  # fmt: skip


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
class FullComparison:
    """Stopping against full thinking, over the same questions."""

    questions: int
    """Answered both with stopping and without."""
    decoded_tokens: int
    """Tokens with stopping, those of the probes included."""
    full_decoded_tokens: int
    """Tokens without."""
    think_tokens: int
    """Thinking tokens with stopping."""
    full_think_tokens: int
    """Thinking tokens without."""
    differing: int
    """Stopped questions whose reply is not, in normal form, what full thinking answers; it counts
    where either is empty, or full thinking was cut off."""
    differing_share: float | None
    """Their share of the questions."""
    differing_ci95: tuple[float, float] | None
    """Its exact interval."""
    labelled: int
    """Questions with gold; what follows, but for the savings, is of these."""
    correct: int
    """Right with stopping."""
    full_correct: int
    """Right without."""
    lost: int
    """Right without, wrong with stopping."""
    token_saving_pct: float | None
    """Decoded tokens saved, those of the probes paid; null without any question."""
    think_saving_pct: float | None
    """Thinking tokens saved."""
    accuracy: float | None
    """Accuracy with stopping; null without gold, as what follows."""
    full_accuracy: float | None
    """Accuracy without."""
    risk: float | None
    """Share lost."""
    risk_ci95: tuple[float, float] | None
    """Its exact interval."""


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
class RungShare:
    """What one rung did."""

    name: str
    """Of the rung."""
    asked: int
    """Questions that it was asked."""
    served: int
    """Questions that it answered."""
    share: float
    """Their share."""
    down: int
    """Questions at which it could not be asked."""


@dataclass(frozen=True)
class ClimbSummary:
    """What climbing a ladder came to."""

    rungs: tuple[RungShare, ...]
    """In the order of climbing."""
    price: float
    """Of a question on average, replies that were climbed past included, in the ladder's unit."""
    full_price: float | None
    """Only with `--compare-full`: of the reference alone."""
    price_saving_pct: float | None
    """Only with `--compare-full`: of the questions that were answered both ways."""
    gave_up: int
    """Questions whose cheap rungs the rule expected to be wrong: the reference was next, or a reply
    is served all the same."""


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
    serving: Literal["resume"] | None
    """`resume` at a server, which goes on with the thinking after each probe; null where the model
    runs here."""
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
    labelled: int
    """Questions with gold."""
    accuracy: float | None
    """Share of these that are right."""
    full: TimedComparison | None
    """Only with `--compare-full`: against full thinking."""
    remarks: tuple[str, ...]
    """What the reader should know."""
    climbed: ClimbSummary | None = None
    """Only of a policy that climbs a ladder."""
    headline: str = ""
    """First line of the screen."""
