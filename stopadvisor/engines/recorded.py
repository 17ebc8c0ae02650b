"""A recorded trace as token ids, as if the model had drawn it.

Text has no tokens of its own: it is split by the tokenizer of the model that is probed.  The same
for every engine; knows no model and no server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stopadvisor.engines.chat import Chat
from stopadvisor.ground.errors import EngineError
from stopadvisor.probes.plan import Prompt
from stopadvisor.workload.questions import RecordedTrace

__all__ = ["RecordedIds", "are_recorded", "recorded_ids"]


@dataclass(frozen=True)
class RecordedIds:
    """A trace that was read, in the terms of one that was drawn."""

    ids: tuple[int, ...]
    """Thinking, and where that was closed, closer, reply and ending token."""
    thinking: int
    """How many of them are thinking."""
    closed: bool
    """Thinking came to its end, and did so within the cap."""
    cut: bool = False
    """It was cut."""


def recorded_ids(
    chat: Chat, trace: RecordedTrace, *, stop_id: int, max_think: int, answer_cap: int
) -> RecordedIds:
    """Split a recorded trace as a drawn one is split; cut where a drawn one would be cut.

    Parameters
    ----------
    stop_id
        The token that ends a reply.
    max_think, answer_cap
        Most tokens of thinking and of reply.
    """
    thinking = chat.encode(trace.thinking)
    length = len(thinking)
    if length > max_think or trace.reply is None:
        thinking = thinking[:max_think]
        cut = not trace.ended or len(thinking) < length
        return RecordedIds(tuple(thinking), len(thinking), closed=False, cut=cut)
    reply = [*chat.encode(trace.reply), stop_id][:answer_cap]
    return RecordedIds((*thinking, *chat.closer.ids, *reply), len(thinking), closed=True)


def are_recorded(prompts: Sequence[Prompt]) -> bool:
    """Whether prompts bring recorded traces."""
    recorded = sum(prompt.recorded is not None for prompt in prompts)
    if recorded not in (0, len(prompts)):
        raise EngineError(
            f"all prompts of a batch must bring a recorded trace or none, got {recorded} of "
            f"{len(prompts)}"
        )
    return recorded > 0
