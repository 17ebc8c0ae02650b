"""What a session is told of a served trace: tokens that were drawn, and a forced answer.

The same wherever the model runs; imports nothing that only an HTTP client needs.
"""

from __future__ import annotations

from stopadvisor.engines.answer_end import ForcedAnswer
from stopadvisor.engines.chat import Chat
from stopadvisor.engines.openai.trace import Trace
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.session import Rule, Session
from stopadvisor.probes.markers import count_markers

__all__ = ["report_answer", "report_drawn"]


def report_drawn(session: Session, trace: Trace) -> None:
    """Tell what was drawn since the session was told last."""
    if session.needs_ids:
        session.receive(trace.ids[session.drawn :])
    else:
        session.receive(len(trace.ids) - session.drawn)
    if session.thinking is None and trace.end.thinking >= 0:
        session.end(trace.end.thinking, cut=trace.end.cut)


def report_answer(
    session: Session, rule: Rule | None, chat: Chat, thinking: list[int], forced: ForcedAnswer
) -> None:
    """Hand over the answer that was forced behind some thinking, for which the session asked."""
    markers = None
    # Decoding a long prefix holds up all other requests: only for a rule that reads it.
    if not isinstance(rule, Policy) or rule.rule.needs_markers:
        markers = float(count_markers(chat.decode(thinking)))
    session.judge(
        answer=forced.text,
        mean_logprob=forced.mean_logprob,
        mean_entropy=forced.mean_entropy,
        markers=markers,
        closed_by_itself=forced.closed_by_itself,
        entropy_slack=forced.entropy_slack,
    )
