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

__all__ = ["AnswerReport", "make_reply"]


def make_reply(
    task: str,
    stops: AnswerStops,
    stop: Stop | None,
    served: ForcedAnswer | Sequence[int] | None,
    thinking: Sequence[int],
    *,
    cut: bool,
    started: float,
    **counts: int,
) -> Reply:
    """Sum a request up; without `stop` it has ended by itself, or was `cut`.

    `served` is the forced answer that a stop rests on, or the tokens that the model wrote after its
    closer, its own or ours; None where thinking was never closed.
    """
    assert stop is None or served is not None
    text, answer, visible_tokens = None, None, 0
    if isinstance(served, ForcedAnswer):
        text = served.text
        answer = extract_forced(task, text) or None
    elif served is not None:
        text = stops.visible_text(served)
        answer = extract_natural(task, text)
        visible_tokens = len(stops.chat.closer.ids) + len(served)
    return Reply(
        text=text,
        answer=answer,
        stopped_at=None if stop is None else stop.index,
        budget=None if stop is None else stop.position,
        visible_tokens=visible_tokens,
        seconds=time.perf_counter() - started,
        finish="stopped" if stop is not None else ("length" if cut else "stop"),
        thinking=stops.chat.decode(thinking),
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
