"""A drawn trace with its answers, from token ids to texts and figures; the same for every engine.

A recorded trace is split into token ids by the tokenizer of the model that is probed, as if that
model had drawn it.  Knows no model, no server and no gold answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stopadvisor.engines.answer_end import AnswerStops, ForcedAnswer
from stopadvisor.engines.chat import Chat, GrowingText
from stopadvisor.ground.errors import EngineError
from stopadvisor.probes.asking import ProbePlan, Prompt, RawProbe, RawTrace
from stopadvisor.probes.markers import MarkerCounter
from stopadvisor.probes.positions import TracePositions
from stopadvisor.workload.questions import RecordedTrace

__all__ = ["RecordedIds", "are_recorded", "raw_trace", "recorded_ids"]


def raw_trace(
    stops: AnswerStops,
    plan: ProbePlan,
    positions: TracePositions,
    *,
    prompt_tokens: int,
    ids: Sequence[int],
    thinking: int,
    closed: bool,
    cut: bool,
    forced: Mapping[int, ForcedAnswer],
    visible: Mapping[int, Sequence[int]],
) -> RawTrace:
    """Put one trace together.

    `ids` are thinking, closer, natural answer and ending token; `thinking` says how many of them
    are thinking, `closed` whether the model closed it, and `cut` whether it was cut at its cap.
    `positions` say where the trace is probed.
    Forced answers are given by the thinking tokens before them: budgets at or beyond the trace's
    length share the one at its end.  Visible ones are given by position.
    """
    chat, closer = stops.chat, len(stops.chat.closer.ids)
    growing, counter = GrowingText(chat), MarkerCounter()
    texts = {at: growing.decode(ids[:at]) for at in sorted({*forced, thinking})}
    markers = {at: counter.count(text) for at, text in texts.items()}

    def probe(budget: int) -> RawProbe:
        at = min(budget, thinking)
        answer, written = forced[at], visible.get(budget)
        return RawProbe(
            budget=budget,
            think_tokens=at,
            text=answer.text,
            mean_logprob=answer.mean_logprob,
            mean_entropy=answer.mean_entropy,
            probe_tokens=len(answer.ids),
            markers=markers[at],
            ended=thinking <= budget,
            tail_mass=answer.tail_mass,
            visible_text=None if written is None else stops.visible_text(written),
            visible_tokens=0 if written is None else closer + len(written),
            closed_by_itself=answer.closed_by_itself,
            characters=len(texts[at]),
        )

    return RawTrace(
        prompt_tokens=prompt_tokens,
        suffix_tokens=len(chat.suffix_ids(plan.cue)),
        trace_tokens=thinking,
        finish="length" if cut else "stop",
        thinking=texts[thinking],
        natural_text=stops.visible_text(ids[thinking + closer :]) if closed else None,
        natural_tokens=len(ids) - thinking if closed else 0,
        probes=tuple(probe(position) for position in positions.probed),
        thinking_ids=tuple(ids[:thinking]),
        marker_positions=positions.markers,
    )


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
