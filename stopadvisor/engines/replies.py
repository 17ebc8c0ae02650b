"""From an answer's tokens to what a request is served, the same for every engine.

Imports neither torch nor an HTTP library; knows no model and no server.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from stopadvisor.answers.normal_form import extract_forced, extract_natural
from stopadvisor.engines.answer_end import AnswerStops, ForcedAnswer
from stopadvisor.engines.chat import Chat, GrowingText
from stopadvisor.policy.requests import Reply
from stopadvisor.policy.session import Rule, Session, Stop
from stopadvisor.probes.markers import MarkerCounter

__all__ = ["AnswerReport", "ReplyText", "forced_reply", "make_reply", "written_reply"]


@dataclass(frozen=True)
class ReplyText:
    """What is served; without a text nothing, as thinking was never closed."""

    text: str | None = None
    answer: str | None = None
    """The short answer in it."""
    visible_tokens: int = 0


def forced_reply(task: str, forced: ForcedAnswer) -> ReplyText:
    """Serve the forced answer that a stop rests on."""
    return ReplyText(forced.text, extract_forced(task, forced.text) or None)


def written_reply(stops: AnswerStops, task: str, ids: Sequence[int]) -> ReplyText:
    """Serve what the model wrote after its closer, its own or ours."""
    text = stops.visible_text(ids)
    return ReplyText(text, extract_natural(task, text), len(stops.chat.closer.ids) + len(ids))


def make_reply(
    said: ReplyText, stop: Stop | None, thinking: str, *, cut: bool, started: float, **counts: int
) -> Reply:
    """Sum a request up; without `stop` it has ended by itself, or was `cut`."""
    return Reply(
        text=said.text,
        answer=said.answer,
        stopped_at=None if stop is None else stop.index,
        budget=None if stop is None else stop.position,
        visible_tokens=said.visible_tokens,
        seconds=time.perf_counter() - started,
        finish="stopped" if stop is not None else ("length" if cut else "stop"),
        thinking=thinking,
        climbed=None,
        **counts,
    )


@dataclass
class AnswerReport:
    """Hands forced answers of one request to its session, with the markers before each."""

    rule: Rule | None
    chat: Chat
    _text: GrowingText = field(init=False)
    _markers: MarkerCounter = field(default_factory=MarkerCounter, init=False)

    def __post_init__(self) -> None:
        self._text = GrowingText(self.chat)

    def judge(self, session: Session, thinking: Sequence[int], forced: ForcedAnswer) -> None:
        """Hand over the forced answer that the session asked for after this thinking."""
        markers = None
        # Decoding holds up all other requests: only for a rule that reads markers.
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
