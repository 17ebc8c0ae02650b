"""What `run` prints and saves: an answered workload as one value, and the sums in it.

Knows lines of answers and what they were answered with; no screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stopadvisor.policy.requests import OnStop
from stopadvisor.serving.answer_file import AnswerRecord, FullAnswer
from stopadvisor.stats.intervals import exact_interval

if TYPE_CHECKING:  # which is summed up here, by its own use case
    from stopadvisor.serving.answering import AnswerPass

__all__ = ["AnswerSummary", "ClimbSummary", "FullComparison", "TimedComparison", "summed_up"]


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


# --- Sums over lines ------------------------------------------------------------------------------


def summed_up(
    answered: AnswerPass, lines: Sequence[AnswerRecord], remarks: Sequence[str]
) -> AnswerSummary:
    """Sum up a pass, and the lines that are there now."""
    settings = answered.settings
    policy, terms = answered.policy, answered.policy.terms
    certificate, saving = terms.certificate, None
    if terms.serving == "kv-fork" and terms.expected is not None:
        saving = (terms.expected.saving_by_serving or {}).get("prefix-cache")
    graded = [line.correct for line in lines if line.correct is not None]
    stopped = sum(line.stopped for line in lines)
    return AnswerSummary(
        policy=str(settings.policy),
        digest=policy.digest,
        kind=policy.kind,
        family=policy.family,
        workload=str(settings.workload),
        model=answered.engine.name,
        out=str(answered.file.path),
        setting=answered.file.setting,
        on_stop=answered.on_stop,
        serving="resume" if answered.engine.identity()["engine"] == "openai" else None,
        server_saving_pct=saving,
        certified=certificate is not None and answered.on_stop == terms.on_stop,
        alpha=None if certificate is None else certificate.alpha,
        loss=None if certificate is None else certificate.loss,
        questions=len(lines),
        new=answered.new,
        seconds=round(answered.seconds[True], 3),
        stopped=stopped,
        stopped_share=stopped / len(lines) if lines else None,
        mean_tokens=MeanTokens(
            _mean([line.think_tokens for line in lines]),
            _mean([line.probe_tokens for line in lines]),
            _mean([line.visible_tokens for line in lines]),
        ),
        labelled=len(graded),
        accuracy=_mean(graded),
        full=_timed(answered, lines) if any(line.full for line in lines) else None,
        climbed=_climbs(lines, tuple(dict.fromkeys(rung.name for rung in policy.ladder))),
        remarks=tuple(remarks),
    )


def _timed(answered: AnswerPass, lines: Sequence[AnswerRecord]) -> TimedComparison:
    """Compare with full thinking, and the times where this call answered both ways."""
    split = answered.policy.terms.split
    seen = set() if split is None else {*split.fit, *split.calibration}
    seconds, full_seconds = answered.seconds[True], answered.seconds[False]
    timed = answered.new if answered.settings.compare_full else 0
    return TimedComparison(
        **vars(_compared(lines)),
        timed_questions=timed,
        seconds=round(seconds, 3) if timed else None,
        full_seconds=round(full_seconds, 3) if timed else None,
        time_saving_pct=_saving(seconds, full_seconds) if timed and full_seconds else None,
        unmet=_compared([line for line in lines if line.key not in seen]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _saving(spent: float, full: float) -> float:
    return 100 * (1 - spent / full) if full else 0.0


def _climbs(lines: Sequence[AnswerRecord], names: Sequence[str]) -> ClimbSummary | None:
    """Sum up how questions were climbed; None where none was."""
    found = [(line.climbed, line.full) for line in lines if line.climbed is not None]
    if not found:
        return None
    rungs = []
    for name in names:
        asked = [[each for each in way.asked if each.name == name] for way, _ in found]
        served = sum(way.rung == name for way, _ in found)
        down = sum(any(each.down is not None for each in row) for row in asked)
        rungs.append(RungShare(name, sum(map(bool, asked)), served, served / len(found), down))
    compared = [(way.price, full.price) for way, full in found if full and full.price is not None]
    spent, full = sum(price for price, _ in compared), sum(price for _, price in compared)
    return ClimbSummary(
        tuple(rungs),
        sum(way.price for way, _ in found) / len(found),
        full / len(compared) if compared else None,
        _saving(spent, full) if full else None,
    )


def _compared(lines: Sequence[AnswerRecord]) -> FullComparison:
    """Compare those lines that hold the full answer too."""
    pairs = [(line, line.full) for line in lines if line.full is not None]
    graded = [
        (line.correct, full.correct)
        for line, full in pairs
        if line.correct is not None and full.correct is not None
    ]
    n, labelled = len(pairs), len(graded)
    decoded = sum(line.decoded_tokens for line, _ in pairs)
    full_decoded = sum(full.decoded_tokens for _, full in pairs)
    think = sum(line.think_tokens for line, _ in pairs)
    full_think = sum(full.think_tokens for _, full in pairs)
    differing = sum(_differs(line, full) for line, full in pairs)
    correct = sum(right for right, _ in graded)
    full_correct = sum(full for _, full in graded)
    lost = sum(full and not right for right, full in graded)
    return FullComparison(
        questions=n,
        decoded_tokens=decoded,
        full_decoded_tokens=full_decoded,
        think_tokens=think,
        full_think_tokens=full_think,
        differing=differing,
        differing_share=differing / n if n else None,
        differing_ci95=exact_interval(differing, n) if n else None,
        labelled=labelled,
        correct=correct,
        full_correct=full_correct,
        lost=lost,
        token_saving_pct=_saving(decoded, full_decoded) if n else None,
        think_saving_pct=_saving(think, full_think) if n else None,
        accuracy=correct / labelled if labelled else None,
        full_accuracy=full_correct / labelled if labelled else None,
        risk=lost / labelled if labelled else None,
        risk_ci95=exact_interval(lost, labelled) if labelled else None,
    )


def _differs(line: AnswerRecord, full: FullAnswer) -> bool:
    same = line.normalized == full.normalized != "" and full.finish != "length"
    return line.stopped and not same
