"""Where a trace is probed: at given budgets, at a fixed stride, or where a marker begins.

A position is a number of thinking tokens, exactly those that the probe there reads.  A trigger sees
nothing but thinking tokens in order, so the same thinking gives the same positions, whether it
arrives token by token, in pieces, or all at once from a record.  The caller (`session.Session`)
decides which tokens are thinking.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Literal

from stopadvisor.ground.errors import PolicyError
from stopadvisor.probes.asking import ProbePlan

__all__ = [
    "NO_MARKER_IDS", "ListedTrigger", "MarkerTrigger", "Positions", "TracePositions", "Trigger",
    "at_trigger", "marker_positions", "probed_positions", "stride", "trace_positions",
]  # fmt: skip


NO_MARKER_IDS = (
    "the policy probes where a marker begins and knows no marker's token ids: it comes from "
    "recorded answers, and can be looked at and verified, not served; for one to serve, probe the "
    "model itself with `stopadvisor probe --schedule marker`"
)


@dataclass(frozen=True)
class ListedTrigger:
    """The same positions in every trace: the budgets of a policy, or a stride."""

    positions: tuple[int, ...]
    """Thinking tokens, strictly increasing; empty for no probes."""
    stop_at: int | None = None
    """The last position, if every trace that reaches it is to be stopped; otherwise None."""
    every: int | None = None
    """Distance between the positions before `stop_at`, if they are a stride."""
    needs_ids: ClassVar[bool] = False
    """Whether it needs token ids, not just their number."""

    @property
    def kind(self) -> Literal["grid", "stride"]:
        """How the positions were given."""
        return "grid" if self.every is None else "stride"

    @property
    def most_probes(self) -> int:
        """Limit on the positions of a trace, including `stop_at`."""
        return len(self.positions)

    def start(self) -> Positions:
        """Begin a trace."""
        return _ListedPositions(self.positions)

    def as_stride(self) -> ListedTrigger:
        """The same positions, told as a stride if they are one."""
        # In a stride the gap before `stop_at` is not longer than the others.
        every, last = self._step, self.positions[-1]
        is_stride = every > 0 and last - self._before[-1] <= every and self.positions[0] > 0
        return replace(self, every=every if is_stride else None)

    @property
    def _before(self) -> tuple[int, ...]:
        """Positions at which the score decides."""
        return self.positions if self.stop_at is None else self.positions[:-1]

    @property
    def _step(self) -> int:
        """Distance between these positions; 0 if there is none, or several."""
        steps = {after - before for before, after in pairwise(self._before)}
        return steps.pop() if len(steps) == 1 else 0

    def describe(self) -> str:
        """Where it probes, in words."""
        before = self._before
        if self._step and len(before) > 3:
            text = f"every {self._step} thinking tokens from {before[0]}"
            text += "" if self.stop_at is not None else f" to {before[-1]}"
        else:
            text = f"at {', '.join(map(str, before))} thinking tokens" if before else ""
        if self.stop_at is None:
            return text
        return f"{text}, stopping all at {self.stop_at}" if text else f"at {self.stop_at}"


def stride(
    every: int, cap: int, first: int | None = None, stop_at: int | None = None
) -> ListedTrigger:
    """Probe every `every` tokens, from `first` (by default `every`) to `cap`.

    With `stop_at`, which replaces the cap, every trace is stopped there, on the stride or not.
    """
    first = every if first is None else first
    if stop_at is None:
        return ListedTrigger(tuple(range(first, cap + 1, every)), None, every)
    return ListedTrigger((*range(first, stop_at, every), stop_at), stop_at, every)


@dataclass(frozen=True)
class MarkerTrigger:
    """Probe just before a marker, such as a sentence's opening ``Wait``.

    Notes
    -----
    Token ids are compared, not texts.  Only ids can show that a marker begins a sentence: ``Wait``
    after a line break has another id than ``wait`` after a comma.  Distances are measured from the
    last probe, or from the beginning of the thinking.  A marker counts if all of its tokens are
    thinking; several that begin at the same token count once.
    """

    markers: tuple[tuple[int, ...], ...]
    """Token ids of each marker; the position is just before them.  Empty where recorded positions
    suffice, as while a rule is chosen: such a trigger can be replayed, but cannot serve."""
    min_gap: int
    """A marker fewer tokens than this after the last probe, or the start, is skipped."""
    max_probes: int
    """Limit on the probes of a trace, not counting `stop_at`."""
    max_markers: int | None = None
    """Only the first markers of a trace, up to this many, count; skipped ones included."""
    stop_at: int | None = None
    """The last position, if every trace that reaches it is to be stopped; otherwise None."""
    kind: ClassVar[Literal["marker"]] = "marker"
    needs_ids: ClassVar[bool] = True
    positions: ClassVar[None] = None
    """Positions are not known before the trace."""

    @property
    def most_probes(self) -> int:
        """Limit on the positions of a trace, including `stop_at`."""
        return self.max_probes + (self.stop_at is not None)

    def start(self) -> Positions:
        """Begin a trace; raises `PolicyError` if the markers' ids are unknown."""
        if not self.markers:
            raise PolicyError(NO_MARKER_IDS)
        return _MarkerPositions(self)

    def describe(self) -> str:
        """Where it probes, in words."""
        text = f"at markers at least {self.min_gap} thinking tokens apart"
        return text if self.stop_at is None else f"{text}, stopping all at {self.stop_at}"


Trigger = ListedTrigger | MarkerTrigger
"""A rule for positions; frozen, and shared by all traces of a policy."""


# --- One trace ------------------------------------------------------------------------------------


class _ListedPositions:
    """Positions of one trace that are known before it begins."""

    __slots__ = ("_left", "_next", "_tokens")

    def __init__(self, positions: Iterable[int]) -> None:
        self._left = iter(positions)
        self._next = next(self._left, None)
        self._tokens = 0

    def feed(self, ids: Sequence[int] | int) -> None:
        """Add thinking tokens: their ids, or just their number if ids are not needed."""
        self._tokens += ids if isinstance(ids, int) else len(ids)

    def finish(self) -> None:
        """Note that the thinking is over: no more tokens will come."""
        if self._next is not None and self._next >= self._tokens:
            self._next = None

    def next(self) -> int | None:
        """Return the position to probe next, or None while it is unknown.

        A position is known once the trace is longer, because a trace is not probed at its end.
        """
        return self._next if self._next is not None and self._next < self._tokens else None

    def advance(self) -> None:
        """Move on, once the position from `next` was probed."""
        self._next = next(self._left, None)

    @property
    def wanted(self) -> int | None:
        """Thinking tokens needed before `next` can change; None if no position is left."""
        return None if self._next is None else self._next + 1

    @property
    def earliest(self) -> int | None:
        """Lower bound on the next position, before which thinking may be shown; None if none."""
        return self._next


class _MarkerPositions:
    """Positions that are found in token ids; same methods as `_ListedPositions`."""

    def __init__(self, trigger: MarkerTrigger) -> None:
        self._trigger = trigger
        self._shortest = min(map(len, trigger.markers))
        self._by_first: dict[int, list[tuple[int, ...]]] = {}
        for marker in trigger.markers:
            self._by_first.setdefault(marker[0], []).append(marker)
        self._ids: list[int] = []
        self._over = False
        self._probes = 0
        self._last = 0
        """Position of the last probe; 0 before the first."""
        self._looked = 0
        """Tokens before this one were searched for markers."""
        self._markers = 0
        """Markers that begin there."""
        self._found: int | None = None
        self._stopped = False

    def feed(self, ids: Sequence[int] | int) -> None:
        if isinstance(ids, int):
            raise PolicyError(f"a marker trigger needs the tokens' ids, got a count of {ids}")
        self._ids.extend(ids)

    def finish(self) -> None:
        self._over = True

    def next(self) -> int | None:
        if self._found is None and not self._stopped:
            self._found = self._find()
        return self._found

    def advance(self) -> None:
        assert self._found is not None
        self._stopped = self._found == self._trigger.stop_at
        self._last, self._found = self._found, None
        self._probes += 1

    @property
    def wanted(self) -> int | None:
        if self._none_left:
            return None
        marker, last = self._next_marker, self._stop_at
        ends = [] if marker is None else [marker + self._shortest]
        ends += [] if last is None else [last + 1]
        return max(min(ends), len(self._ids) + 1)

    @property
    def earliest(self) -> int | None:
        if self._none_left:
            return None
        return min(p for p in (self._next_marker, self._stop_at) if p is not None)

    @property
    def _next_marker(self) -> int | None:
        """Smallest possible position of the next marker; None if no more markers count."""
        trigger = self._trigger
        if self._stopped or self._probes >= trigger.max_probes:
            return None
        if trigger.max_markers is not None and self._markers >= trigger.max_markers:
            return None
        return max(self._looked, self._last + trigger.min_gap)

    @property
    def _stop_at(self) -> int | None:
        return None if self._stopped else self._trigger.stop_at

    @property
    def _none_left(self) -> bool:
        nothing = self._next_marker is None and self._stop_at is None
        return nothing or (self._over and self.next() is None)

    def _find(self) -> int | None:
        last, drawn = self._stop_at, len(self._ids)
        marker, held_back = self._find_marker(drawn if last is None else min(drawn, last))
        if marker is not None:
            return marker
        return last if last is not None and last < drawn and not held_back else None

    def _find_marker(self, end: int) -> tuple[int | None, bool]:
        """Find a marker that begins before `end`; also say whether that takes more tokens."""
        if self._trigger.max_markers is None:
            # Markers within the gap need not be counted.
            self._looked = max(self._looked, min(self._last + self._trigger.min_gap, end))
        while (least := self._next_marker) is not None and self._looked < end:
            # Few tokens begin a marker, so skip the others quickly.
            candidates = (i for i in range(self._looked, end) if self._ids[i] in self._by_first)
            start = self._looked = next(candidates, end)
            if start == end:
                break
            match = self._begins(start)
            if match is None and not self._over:
                return None, True
            self._looked += 1
            if match:
                self._markers += 1
                if start >= least:
                    return start, False
        return None, False

    def _begins(self, start: int) -> bool | None:
        """Whether a marker begins at this token; None if that takes more tokens to tell."""
        unfinished = False
        for marker in self._by_first.get(self._ids[start], ()):
            here = tuple(self._ids[start : start + len(marker)])
            if here == marker:
                return True
            unfinished |= here == marker[: len(here)]
        return None if unfinished else False


Positions = _ListedPositions | _MarkerPositions


# --- A whole trace under a plan -------------------------------------------------------------------

_NO_TOKEN = -1


@dataclass(frozen=True)
class TracePositions:
    """Positions of one trace's probes and markers, in thinking tokens."""

    probed: tuple[int, ...]
    """Strictly increasing.  Grid positions beyond the trace's end share the probe at its end; all
    other positions are inside."""
    markers: tuple[int, ...] | None
    """Thinking tokens before each marker, probed or not; None if markers were not searched for."""


def trace_positions(plan: ProbePlan, thinking_ids: Sequence[int]) -> TracePositions:
    """Where a plan probes a whole trace; `thinking_ids` exclude the closer."""
    markers = None
    if plan.schedule == "marker":
        markers = marker_positions(plan.markers, thinking_ids)
    return TracePositions(probed_positions(plan, len(thinking_ids), markers), markers)


def marker_positions(
    markers: Sequence[tuple[int, ...]], thinking_ids: Sequence[int]
) -> tuple[int, ...]:
    """Thinking tokens before each marker of a whole trace.

    A marker at the very beginning, at 0, is counted but never probed.
    """
    if {marker[0] for marker in markers}.isdisjoint(thinking_ids):
        return ()
    trigger = MarkerTrigger(tuple(markers), min_gap=1, max_probes=len(thinking_ids))
    whole = [_NO_TOKEN, *thinking_ids]  # a trigger never returns position 0
    return tuple(at - 1 for at in _all_positions(trigger, whole))


def _all_positions(trigger: MarkerTrigger, thinking_ids: Sequence[int]) -> list[int]:
    """All positions of a whole trace."""
    positions = trigger.start()
    positions.feed(thinking_ids)
    positions.finish()
    found = []
    while (position := positions.next()) is not None:
        found.append(position)
        positions.advance()
    return found


def probed_positions(
    plan: ProbePlan, trace_tokens: int, markers: Sequence[int] | None
) -> tuple[int, ...]:
    """Where a trace of this length, with markers at these positions, is probed.

    Markers are chosen as a `MarkerTrigger` would; one that is also a budget is probed once.
    """
    if plan.schedule == "grid":
        return plan.budgets
    probed = {budget for budget in plan.budgets if budget < trace_tokens}
    if plan.schedule == "marker" and trace_tokens:
        ids = [0] * trace_tokens  # stand in for ids that were not recorded
        for at in markers or ():
            ids[at] = 1
        most = plan.max_probes or trace_tokens
        trigger = MarkerTrigger(((1,),), plan.min_gap, most, plan.max_markers)
        probed.update(_all_positions(trigger, ids))
    return tuple(sorted(probed))


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
            # Without a limit, more than there can be.
            max_markers=trigger.max_markers or plan.max_think,
            max_probes=trigger.max_probes,
        )
    listed = (position for position in trigger.positions if position <= plan.max_think)
    return replace(plan, budgets=tuple(sorted({*listed, *stop_at})))
