"""A drawn trace with its answers, from token ids to texts and figures; the same for every engine.

Knows no model, no server and no gold answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stopadvisor.engines.answer_end import AnswerStops, ForcedAnswer
from stopadvisor.engines.chat import GrowingText
from stopadvisor.probes.markers import MarkerCounter
from stopadvisor.probes.plan import ProbePlan, RawProbe, RawTrace
from stopadvisor.probes.positions import TracePositions

__all__ = ["raw_trace"]


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
            # Whether it is an answer is not known here; that a reply is cut, its tokens say.
            escaped_tokens=stops.escaped_tokens(
                answer.after_closer if written is None else written, plan.answer_cap, answered=True
            ),
            closed_by_itself=answer.closed_by_itself,
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
