"""A trace, from its first token to a saved record or a served reply."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stopadvisor.answers.normal_form import extract_forced, extract_natural
from stopadvisor.engines.answer_end import AnswerStops, ForcedAnswer
from stopadvisor.engines.chat import Chat, GrowingText
from stopadvisor.ground.errors import EngineError
from stopadvisor.policy.requests import Reply
from stopadvisor.policy.session import Rule, Session, Stop
from stopadvisor.probes.asking import ProbePlan, Prompt, RawProbe, RawTrace
from stopadvisor.probes.markers import MarkerCounter
from stopadvisor.probes.trigger import TracePositions

__all__ = [
    "AnswerReport",
    "Figures",
    "Trace",
    "TraceEnd",
    "make_reply",
    "mean_figures",
    "raw_trace",
    "read_recorded",
    "report_drawn",
    "token_figures",
]

Figures = tuple[float, float, float]
"""Log-probability, entropy and tail mass of a token, or their means."""


@dataclass
class TraceEnd:
    """Detects the end of thinking and of the natural answer after it."""

    closer: tuple[int, ...]
    stop_ids: tuple[int, ...]
    max_think: int
    answer_cap: int
    thinking: int = -1
    """Number of thinking tokens; -1 while thinking."""
    closed: bool = False
    cut: bool = False
    over: bool = False
    limit: int | None = None
    """Cap on thinking and answer together, instead of the other two caps."""

    @property
    def most(self) -> int:
        """Limit on the trace's tokens."""
        if self.limit is not None:
            return self.limit
        return self.max_think + len(self.closer) + self.answer_cap

    def see(self, ids: Sequence[int]) -> None:
        """Process the last token of `ids`, all tokens so far."""
        token, steps = ids[-1], len(ids)
        begun = steps - len(self.closer)  # thinking tokens, if the closer has just ended
        if self.thinking >= 0:
            self.over = token in self.stop_ids or begun - self.thinking >= self.answer_cap
            return
        if 0 <= begun <= self.max_think and tuple(ids[begun:]) == self.closer:
            self.thinking, self.closed = begun, True
        elif token in self.stop_ids and token not in self.closer:
            self.thinking = min(steps - 1, self.max_think)
            self.cut, self.over = steps - 1 > self.max_think, True
        elif begun >= self.max_think:
            # Only here: a closer may still begin right after the last allowed token.
            self.thinking, self.cut, self.over = self.max_think, True, True

    def give_up(self, ids: Sequence[int]) -> None:
        """End the trace after `ids`: the server generates no more."""
        if self.over:
            return
        if self.thinking < 0:
            self.thinking, self.cut = min(len(ids), self.max_think), True
        self.over = True


@dataclass(eq=False)
class Trace:
    """A growing or finished trace."""

    prompt_ids: Sequence[int]
    """The prompt, ending inside the thinking."""
    prompt: Prompt
    """Its key seeds the sampling."""
    plan: ProbePlan
    replica: int | None
    """Number of the server whose cache holds the prefix."""
    end: TraceEnd
    ids: list[int] = field(default_factory=list)
    """Tokens generated after the prompt."""
    cached_tokens: int | None = None
    """Prompt tokens read from the cache; None if not reported."""
    probe_tokens: int = 0
    """Tokens decoded by forced answers, including aborted ones."""
    surplus: int = 0
    """Tokens generated after the trace had ended."""

    @property
    def visible(self) -> list[int]:
        """The natural answer after the closer, including its ending token; empty without one."""
        begin = self.end.thinking + len(self.end.closer)
        return self.ids[begin:] if self.end.closed else []

    def take(self, new: Sequence[int]) -> None:
        """Append new tokens until the trace is over; count the rest as surplus."""
        for taken, token in enumerate(new):
            if self.end.over:
                self.surplus += len(new) - taken
                return
            self.ids.append(token)
            self.end.see(self.ids)


def report_drawn(session: Session, trace: Trace) -> None:
    """Report to a session the tokens generated since its last report."""
    if session.needs_ids:
        session.receive(trace.ids[session.drawn :])
    else:
        session.receive(len(trace.ids) - session.drawn)
    if session.thinking is None and trace.end.thinking >= 0:
        session.end(trace.end.thinking, cut=trace.end.cut)


def token_figures(logprob: float, likeliest: Sequence[float]) -> Figures:
    """Compute a token's figures from the log-probabilities of the likeliest tokens in its place.

    Raises `EngineError` if they are not finite.
    """
    entropy = -sum(math.exp(x) * max(x, -1e4) for x in likeliest)
    tail = 1.0 - sum(math.exp(x) for x in likeliest)
    if not math.isfinite(logprob + entropy + tail):
        raise EngineError("the server returned log-probabilities that are not finite")
    return logprob, entropy, tail


def mean_figures(rows: Sequence[Figures]) -> Figures:
    """Average each figure over one or more tokens."""
    sums = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    return sums[0], sums[1], sums[2]


# --- Records ---


def raw_trace(
    stops: AnswerStops,
    trace: Trace,
    positions: TracePositions,
    forced: Mapping[int, ForcedAnswer],
    visible: Mapping[int, Sequence[int]],
) -> RawTrace:
    """Assemble the record of a finished trace that was probed at `positions`.

    `forced` is keyed by the number of thinking tokens before the answer, so budgets at or beyond
    the trace's length share the answer at its end; `visible` is keyed by position.
    """
    chat, closer, end = stops.chat, len(stops.chat.closer.ids), trace.end
    growing, counter = GrowingText(chat), MarkerCounter()
    texts = {at: growing.decode(trace.ids[:at]) for at in sorted({*forced, end.thinking})}
    markers = {at: counter.count(text) for at, text in texts.items()}

    def probe(budget: int) -> RawProbe:
        at = min(budget, end.thinking)
        answer, written = forced[at], visible.get(budget)
        return RawProbe(
            budget=budget,
            think_tokens=at,
            text=answer.text,
            mean_logprob=answer.mean_logprob,
            mean_entropy=answer.mean_entropy,
            probe_tokens=len(answer.ids),
            markers=markers[at],
            ended=end.thinking <= budget,
            tail_mass=answer.tail_mass,
            visible_text=None if written is None else stops.visible_text(written),
            visible_tokens=0 if written is None else closer + len(written),
            closed_by_itself=answer.closed_by_itself,
            characters=len(texts[at]),
        )

    return RawTrace(
        prompt_tokens=len(trace.prompt_ids),
        suffix_tokens=len(chat.suffix_ids(trace.plan.cue)),
        trace_tokens=end.thinking,
        finish="length" if end.cut else "stop",
        thinking=texts[end.thinking],
        natural_text=stops.visible_text(trace.visible) if end.closed else None,
        natural_tokens=len(trace.ids) - end.thinking if end.closed else 0,
        probes=tuple(probe(position) for position in positions.probed),
        thinking_ids=tuple(trace.ids[: end.thinking]),
        marker_positions=positions.markers,
    )


def read_recorded(chat: Chat, trace: Trace) -> None:
    """Fill a trace from its prompt's recorded text, tokenized for this model, cut at its caps."""
    recorded, end = trace.prompt.recorded, trace.end
    assert recorded is not None
    thinking = chat.encode(recorded.thinking)
    end.over, end.thinking = True, min(len(thinking), end.max_think)
    trace.ids = list(thinking[: end.thinking])
    if len(thinking) > end.max_think or recorded.reply is None:
        end.cut = not recorded.ended or len(thinking) > end.max_think
        return
    end.closed = True
    reply = [*chat.encode(recorded.reply), end.stop_ids[0]][: end.answer_cap]
    trace.ids += [*chat.closer.ids, *reply]


# --- Replies ---


def make_reply(
    task: str,
    stops: AnswerStops,
    trace: Trace,
    stop: Stop | None,
    served: ForcedAnswer | Sequence[int] = (),
    *,
    started: float,
    n_probes: int,
) -> Reply:
    """Build the reply to a request; without `stop` the trace ended by itself or was cut.

    At a stop `served` is the forced answer, or the visible one's tokens.
    """
    end, text, answer, visible_tokens = trace.end, None, None, 0
    thought = len(trace.ids) if end.thinking < 0 else end.thinking
    if isinstance(served, ForcedAnswer):
        text = served.text
        answer = extract_forced(task, text) or None
    elif stop is not None or end.closed:
        ids = trace.visible if stop is None else served
        text = stops.visible_text(ids)
        answer = extract_natural(task, text)
        visible_tokens = len(stops.chat.closer.ids) + len(ids)
    return Reply(
        text=text,
        answer=answer,
        stopped_at=None if stop is None else stop.index,
        budget=None if stop is None else stop.position,
        prompt_tokens=len(trace.prompt_ids),
        think_tokens=thought,
        probe_tokens=trace.probe_tokens,
        visible_tokens=visible_tokens,
        n_probes=n_probes,
        seconds=time.perf_counter() - started,
        finish="stopped" if stop is not None else ("length" if end.cut else "stop"),
        thinking=stops.chat.decode(trace.ids[: thought if stop is None else stop.position]),
    )


@dataclass
class AnswerReport:
    """Reports a request's forced answers and marker counts to its session."""

    rule: Rule | None
    chat: Chat
    _text: GrowingText = field(init=False)
    _markers: MarkerCounter = field(default_factory=MarkerCounter, init=False)

    def __post_init__(self) -> None:
        self._text = GrowingText(self.chat)

    def judge(self, session: Session, thinking: Sequence[int], forced: ForcedAnswer) -> None:
        """Report the forced answer that the session asked for after this thinking."""
        markers = None
        # Decoding blocks all other requests, so only rules that read markers pay for it.
        if self.rule is not None and self.rule.needs_markers:
            markers = float(self._markers.count(self._text.decode(thinking)))
        session.judge(
            answer=forced.text,
            mean_logprob=forced.mean_logprob,
            mean_entropy=forced.mean_entropy,
            markers=markers,
            closed_by_itself=forced.closed_by_itself,
            entropy_slack=forced.entropy_slack,
        )
