"""The result of `run`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stopadvisor.policy.requests import OnStop

__all__ = [
    "AnswerSummary", "ClimbSummary", "FullComparison", "MeanTokens", "RungShare", "TimedComparison",
]  # fmt: skip


@dataclass(frozen=True)
class MeanTokens:
    """Mean number of decoded tokens per question."""

    think: float | None
    """For thinking."""
    probe: float | None
    """For probes."""
    visible: float | None
    """For the visible answer."""


@dataclass(frozen=True)
class FullComparison:
    """Stopping compared with full thinking on the same questions."""

    questions: int
    """Questions answered both ways."""
    decoded_tokens: int
    """Tokens decoded with stopping, including probes."""
    full_decoded_tokens: int
    """Tokens decoded with full thinking."""
    think_tokens: int
    """Thinking tokens with stopping."""
    full_think_tokens: int
    """Thinking tokens with full thinking."""
    differing: int
    """Stopped questions whose answer differs in normal form from full thinking's, where either is
    empty, or where full thinking was cut off."""
    differing_share: float | None
    """Share of the questions that differ."""
    differing_ci95: tuple[float, float] | None
    """Exact 95 % interval of that share."""
    labelled: int
    """Questions with gold; all fields below except the savings are about these."""
    correct: int
    """Right with stopping."""
    full_correct: int
    """Right with full thinking."""
    lost: int
    """Stopped and wrong, right with full thinking."""
    token_saving_pct: float | None
    """Decoded tokens saved, net of probes; null without questions."""
    think_saving_pct: float | None
    """Thinking tokens saved."""
    accuracy: float | None
    """Accuracy with stopping; null without gold, as are the fields below."""
    full_accuracy: float | None
    """Accuracy with full thinking."""
    risk: float | None
    """Share of the questions that are lost."""
    risk_ci95: tuple[float, float] | None
    """Exact 95 % interval of that share."""


@dataclass(frozen=True)
class TimedComparison(FullComparison):
    """Stopping compared with full thinking, also in wall time."""

    timed_questions: int
    """Questions that this call answered both ways."""
    seconds: float | None
    """Wall time with stopping."""
    full_seconds: float | None
    """Wall time without."""
    time_saving_pct: float | None
    """Time saved."""
    unmet: FullComparison
    """The same for questions used neither to fit nor to calibrate the policy."""


@dataclass(frozen=True)
class RungShare:
    """How often one rung was asked and served."""

    name: str
    """Name of the rung."""
    asked: int
    """Questions that it was asked."""
    served: int
    """Questions that it answered."""
    share: float
    """Share of the questions that it answered."""
    down: int
    """Questions to which it gave no usable reply."""


@dataclass(frozen=True)
class ClimbSummary:
    """The result of climbing a ladder."""

    rungs: tuple[RungShare, ...]
    """In climbing order."""
    price: float
    """Mean price of a question in the ladder's unit, including the replies climbed past."""
    full_price: float | None
    """Mean price of asking the reference alone; only with `--compare-full`."""
    price_saving_pct: float | None
    """Saving on questions answered both ways; only with `--compare-full`."""
    gave_up: int
    """Questions for which the rule expected all cheap rungs to be wrong, and skipped to the
    reference or served a reply anyway."""


@dataclass(frozen=True)
class AnswerSummary:
    """`run --json`: what was answered, and what stopping changed."""

    policy: str
    """The policy file."""
    digest: str
    """The policy's digest."""
    kind: str
    """`stop` or `full-budget`."""
    family: str | None
    """The rule's family; null for `full-budget`."""
    workload: str
    """File of the questions."""
    model: str
    """Name of the model."""
    out: str
    """File of the answers."""
    setting: str
    """Short hash of everything that determines an answer."""
    on_stop: OnStop
    """The reply to a stopped question: the `probe`'s answer, or a visible `answer`."""
    serving: Literal["resume"] | None
    """`resume` at a server, which resumes thinking after each probe; null for a local model."""
    server_saving_pct: float | None
    """For a policy chosen for `kv-fork`: the net saving with vLLM's prefix cache, as measured at
    calibration; null for others."""
    certified: bool
    """Whether the certificate covers these answers."""
    alpha: float | None
    """The certified limit; null without a certificate."""
    loss: str | None
    """The loss that alpha limits, such as `lost` or `differs`; null without a certificate."""
    questions: int
    """Questions in the file."""
    new: int
    """Questions answered by this call."""
    seconds: float
    """Wall time of this call's answers."""
    stopped: int
    """Questions stopped early."""
    stopped_share: float | None
    """Share of the questions stopped early."""
    mean_tokens: MeanTokens
    """Mean decoded tokens per question."""
    labelled: int
    """Questions with gold."""
    accuracy: float | None
    """Share of the labelled questions that are right."""
    full: TimedComparison | None
    """Comparison with full thinking; only with `--compare-full`."""
    remarks: tuple[str, ...]
    """Notes for the reader."""
    climbed: ClimbSummary | None = None
    """Only for a policy that climbs a ladder."""
    headline: str = ""
    """First line of the screen."""
