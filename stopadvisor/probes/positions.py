"""Where a plan probes a trace: at its budgets, and before the markers that the trace holds.

The same for every engine, and the same as what a `MarkerTrigger` finds while the thinking comes in.
Knows token ids and counts; no texts, no models and no answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stopadvisor.probes.asking import ProbePlan
from stopadvisor.probes.trigger import MarkerTrigger, Trigger, recorded_positions

__all__ = [
    "TracePositions",
    "at_trigger",
    "marker_positions",
    "probed_positions",
    "trace_positions",
]


_NO_TOKEN = -1


@dataclass(frozen=True)
class TracePositions:
    """Where one trace is probed, in thinking tokens, and where its markers are."""

    probed: tuple[int, ...]
    """Strictly increasing.  Those of a grid may lie beyond the trace's end, where they share the
    probe at its end; all others lie inside."""
    markers: tuple[int, ...] | None
    """Thinking tokens before each marker, probed or not; None where none were looked for."""


def trace_positions(plan: ProbePlan, thinking_ids: Sequence[int]) -> TracePositions:
    """Find where a whole trace is probed.

    Parameters
    ----------
    thinking_ids
        The thinking, without the closer.
    """
    markers = None
    if plan.schedule == "marker":
        markers = marker_positions(plan.markers, thinking_ids)
    return TracePositions(probed_positions(plan, len(thinking_ids), markers), markers)


def marker_positions(
    markers: Sequence[tuple[int, ...]], thinking_ids: Sequence[int]
) -> tuple[int, ...]:
    """Find the thinking tokens before each marker of a whole trace.

    One at the very beginning is among them, at 0: it is counted, and never probed.
    """
    if {marker[0] for marker in markers}.isdisjoint(thinking_ids):
        return ()
    trigger = MarkerTrigger(tuple(markers), min_gap=1, max_probes=len(thinking_ids))
    positions = trigger.start()
    positions.feed([_NO_TOKEN, *thinking_ids])  # a trigger gives no position before the first token
    positions.finish()
    found = []
    while (at := positions.next()) is not None:
        found.append(at - 1)
        positions.advance()
    return tuple(found)


def probed_positions(
    plan: ProbePlan, trace_tokens: int, markers: Sequence[int] | None
) -> tuple[int, ...]:
    """Say where a trace of this length, with markers at these positions, is probed.

    Of the first `max_markers` markers those that stand `min_gap` tokens after the last one taken,
    as a `MarkerTrigger` takes them; what is a budget as well is probed once.
    """
    if plan.schedule == "grid":
        return plan.budgets
    found = {budget for budget in plan.budgets if budget < trace_tokens}
    if plan.schedule == "marker" and trace_tokens:
        trigger = MarkerTrigger(
            plan.markers or ((_NO_TOKEN,),),
            plan.min_gap,
            plan.max_probes or trace_tokens,
            plan.max_markers,
        )
        found.update(recorded_positions(trigger, trace_tokens, markers or ()))
    return tuple(sorted(found))


def at_trigger(plan: ProbePlan, trigger: Trigger) -> ProbePlan:
    """The same traces, probed where a policy's trigger probes them."""
    if trigger.kind == "grid":
        return plan.at_budgets(*trigger.positions)
    plan = replace(plan.at_budgets(), schedule=trigger.kind)
    stop_at = () if trigger.stop_at is None else (min(trigger.stop_at, plan.max_think),)
    if isinstance(trigger, MarkerTrigger):
        return replace(
            plan,
            budgets=stop_at,
            markers=trigger.markers,
            min_gap=trigger.min_gap,
            # More than there can be, where all count.
            max_markers=trigger.max_markers or plan.max_think,
            max_probes=trigger.max_probes,
        )
    listed = (position for position in trigger.positions if position <= plan.max_think)
    return replace(plan, budgets=tuple(sorted({*listed, *stop_at})))
