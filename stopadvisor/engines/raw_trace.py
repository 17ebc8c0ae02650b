"""A drawn trace with its answers, from token ids to texts and figures; the same for every engine.

A recorded trace is split into token ids by the tokenizer of the model that is probed, as if that
model had drawn it.  Knows no model, no server and no gold answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stopadvisor.engines.answer_end import AnswerStops, ForcedAnswer
from stopadvisor.engines.chat import Chat, GrowingText
from stopadvisor.engines.trace import Trace
from stopadvisor.ground.errors import EngineError
from stopadvisor.probes.asking import Prompt, RawProbe, RawTrace
from stopadvisor.probes.markers import MarkerCounter
from stopadvisor.probes.positions import TracePositions

__all__ = ["are_recorded", "raw_trace", "read_recorded"]


def raw_trace(
    stops: AnswerStops,
    trace: Trace,
    positions: TracePositions,
    forced: Mapping[int, ForcedAnswer],
    visible: Mapping[int, Sequence[int]],
) -> RawTrace:
    """Put one trace together that is over and was probed at `positions`.

    Forced answers are given by the thinking tokens before them: budgets at or beyond the trace's
    length share the one at its end.  Visible ones are given by position.
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
    """Take the recorded trace of a prompt as drawn, cut where a drawn one would be cut."""
    recorded, end = trace.prompt.recorded, trace.end
    assert recorded is not None  # the caller has looked
    thinking = chat.encode(recorded.thinking)
    end.over, end.thinking = True, min(len(thinking), end.max_think)
    trace.ids = list(thinking[: end.thinking])
    if len(thinking) > end.max_think or recorded.reply is None:
        end.cut = not recorded.ended or len(thinking) > end.max_think
        return
    end.closed = True
    reply = [*chat.encode(recorded.reply), end.stop_ids[0]][: end.answer_cap]
    trace.ids += [*chat.closer.ids, *reply]


def are_recorded(prompts: Sequence[Prompt]) -> bool:
    """Whether prompts bring recorded traces."""
    recorded = sum(prompt.recorded is not None for prompt in prompts)
    if recorded not in (0, len(prompts)):
        raise EngineError(
            f"all prompts of a batch must bring a recorded trace or none, got {recorded} of "
            f"{len(prompts)}"
        )
    return recorded > 0
