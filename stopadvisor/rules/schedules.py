"""Where a rule probes: at the same positions in every trace, or before each trace's own markers.

A schedule selects a *view* of the table of all probes: the same questions, with only its own
probes.  Scores, losses and costs of a rule are computed on its view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np

from stopadvisor.ground.arrays import BoolArray, IntArray
from stopadvisor.ground.errors import ProbeError
from stopadvisor.probes.table import NO_PROBE, ProbeTable
from stopadvisor.probes.trigger import ListedTrigger, MarkerTrigger, Trigger
from stopadvisor.rules.climb import Climb

__all__ = [
    "GridSchedule", "MarkerSchedule", "Schedule", "at_budget", "commonly_probed",
    "grid_positions", "grid_view", "probed_markers", "schedule_of",
]  # fmt: skip

Table = TypeVar("Table", bound=ProbeTable)


@dataclass(frozen=True)
class GridSchedule:
    """The same positions in every trace."""

    positions: tuple[int, ...]
    """Thinking tokens, strictly increasing."""
    stop_at: int | None = None
    """Position at which every trace is stopped, whatever its score: the last one, or None."""

    def view(self, table: Table) -> Table:
        """The table at these positions.

        Raises
        ------
        ProbeError
            A question whose thinking reaches beyond one of them was not probed there.
        """
        if table.is_grid and table.n_questions:
            budgets = table.budgets.tolist()
            missing = [p for p in self.positions if p not in budgets]
            if not missing:
                if len(budgets) == len(self.positions):
                    return table
                return table.select([budgets.index(p) for p in self.positions])
        wanted = np.broadcast_to(
            np.array(self.positions, dtype=np.int64), (table.n_questions, len(self.positions))
        )
        live = table.trace_tokens[:, None] > wanted
        return table.at(_columns(table, wanted, live), self.positions)

    def up_to(self, last: int) -> GridSchedule:
        """Append `last` as a position unless this schedule reaches it."""
        if self.positions and self.positions[-1] >= last:
            return self
        return GridSchedule((*self.positions, last), self.stop_at)

    def trigger(self) -> ListedTrigger:
        """The trigger that probes a request at these positions."""
        steps = {after - before for before, after in pairwise(self._before)}
        every = steps.pop() if len(steps) == 1 else 0
        # In a stride the gap before `stop_at` is not longer than the others.
        is_stride = every > 0 and self.positions[-1] - self._before[-1] <= every
        is_stride = is_stride and self.positions[0] > 0
        return ListedTrigger(self.positions, self.stop_at, every if is_stride else None)

    @property
    def _before(self) -> tuple[int, ...]:
        """Positions at which the score decides."""
        return self.positions if self.stop_at is None else self.positions[:-1]

    def describe(self) -> str:
        """Where it probes, in words."""
        before = self._before
        steps = {after - b for b, after in pairwise(before)}
        if len(steps) == 1 and len(before) > 3:
            text = f"every {steps.pop()} thinking tokens from {before[0]}"
            text += "" if self.stop_at is not None else f" to {before[-1]}"
        else:
            text = f"at {', '.join(map(str, before))} thinking tokens" if before else ""
        if self.stop_at is None:
            return text
        return f"{text}, stopping all at {self.stop_at}" if text else f"at {self.stop_at}"

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class MarkerSchedule:
    """Positions just before each trace's own markers, such as "Wait"."""

    min_gap: int
    """A marker fewer tokens than this after the last probe, or the start, is skipped."""
    max_probes: int
    """Most probes of a trace, not counting `stop_at`."""
    max_markers: int | None = None
    """Only the first N markers of a trace count; None for all."""
    stop_at: int | None = None
    """Every trace that gets here is stopped, whatever its score; None for no such position."""

    def view(self, table: Table) -> Table:
        """The table at these markers, each question with positions of its own.

        Raises
        ------
        ProbeError
            Markers were not recorded, or one that the schedule probes was not probed.
        """
        if table.marker_positions is None:
            raise ProbeError(
                "a marker schedule needs probes at markers, and these traces were not searched "
                "for any: probe with --schedule marker"
            )
        wanted = self._positions(table.marker_positions)
        if self.stop_at is not None:
            last = np.where(table.trace_tokens > self.stop_at, self.stop_at, NO_PROBE)
            wanted = _packed(np.column_stack([wanted, last]))
        return table.at(_columns(table, wanted, wanted != NO_PROBE))

    def _positions(self, markers: IntArray) -> IntArray:
        """Markers to probe, packed to the left; (n_questions, most probes of a trace)."""
        keep = np.zeros(markers.shape, dtype=bool)
        last = np.zeros(len(markers), dtype=np.int64)
        made = np.zeros(len(markers), dtype=np.int64)
        counted = markers.shape[1] if self.max_markers is None else self.max_markers
        for j in range(min(counted, markers.shape[1])):  # each choice depends on the one before
            here = markers[:, j]
            keep[:, j] = (here != NO_PROBE) & (here - last >= self.min_gap)
            keep[:, j] &= made < self.max_probes
            if self.stop_at is not None:
                keep[:, j] &= here < self.stop_at
            last = np.where(keep[:, j], here, last)
            made += keep[:, j]
        return _packed(np.where(keep, markers, NO_PROBE))

    def trigger(self, markers: Sequence[Sequence[int]]) -> MarkerTrigger:
        """The trigger that probes a request at these markers, given as token ids."""
        return MarkerTrigger(
            tuple(tuple(ids) for ids in markers),
            self.min_gap,
            self.max_probes,
            max_markers=self.max_markers,
            stop_at=self.stop_at,
        )

    def describe(self) -> str:
        """Where it probes, in words."""
        text = f"at markers at least {self.min_gap} thinking tokens apart"
        return text if self.stop_at is None else f"{text}, stopping all at {self.stop_at}"

    def __len__(self) -> int:
        return self.max_probes + (self.stop_at is not None)


Schedule = GridSchedule | MarkerSchedule | Climb


def schedule_of(trigger: Trigger) -> Schedule:
    """The schedule that selects the probes a trigger would make."""
    if isinstance(trigger, MarkerTrigger):
        return MarkerSchedule(
            trigger.min_gap, trigger.max_probes, trigger.max_markers, trigger.stop_at
        )
    return GridSchedule(trigger.positions, trigger.stop_at)


def at_budget(position: int) -> str:
    """Where a fixed budget stops, in words."""
    return f"at {position} thinking tokens, without a probe before"


# --- Positions that a table has -------------------------------------------------------------------


def grid_positions(table: ProbeTable) -> tuple[int, ...]:
    """Positions at which every question still thinking was probed; all budgets of a grid."""
    if table.is_grid and table.n_questions:
        return tuple(table.budgets.tolist())
    live = table.live
    positions, probed = np.unique(table.positions[live], return_counts=True)
    thinking = table.n_questions - np.searchsorted(
        np.sort(table.trace_tokens), positions, side="right"
    )
    return tuple(positions[probed == thinking].tolist())


def commonly_probed(table: ProbeTable, positions: Sequence[int]) -> tuple[int, ...]:
    """Those of the positions at which every question still thinking was probed."""
    wanted = np.broadcast_to(
        np.array(positions, dtype=np.int64), (table.n_questions, len(positions))
    )
    goes_on = table.trace_tokens[:, None] > wanted
    there = (~goes_on | (_find(table, wanted) >= 0)).all(axis=0)
    return tuple(np.array(positions, dtype=np.int64)[there].tolist())


def grid_view(table: Table) -> Table:
    """The table at its `grid_positions`."""
    positions = grid_positions(table)
    if not positions:
        raise ProbeError(
            "these questions share no position at which all of them still thinking were probed"
        )
    return GridSchedule(positions).view(table)


def probed_markers(table: ProbeTable) -> int | None:
    """Largest N such that every trace was probed at its first N markers; None if at all of them."""
    if table.marker_positions is None:
        raise ProbeError("these traces were not searched for markers")
    wanted = table.marker_positions
    there = wanted != NO_PROBE
    missing = there & (_find(table, wanted) < 0)
    if not missing.any():
        return None
    first = np.where(missing.any(axis=1), missing.argmax(axis=1), wanted.shape[1])
    return int(first.min())


def _columns(table: ProbeTable, wanted: IntArray, live: BoolArray) -> IntArray:
    """Column of each wanted position, -1 if no probe happens there; (n_questions, n_wanted)."""
    columns = np.where(live, _find(table, wanted), -1)
    missing = live & (columns < 0)
    if missing.any():
        row, column = (int(k) for k in np.argwhere(missing)[0])
        raise ProbeError(
            f"question {table.ids[row]!r} was not probed at {int(wanted[row, column])} thinking "
            "tokens, where this rule probes it"
        )
    return columns


def _find(table: ProbeTable, wanted: IntArray) -> IntArray:
    """Column of each wanted position in the table, -1 if there is none."""
    n, m = table.positions.shape
    width = int(max(table.positions.max(initial=0), wanted.max(initial=0))) + 2
    rows = np.arange(n)[:, None] * width
    # Padding follows the last probe; as the largest number of its row it keeps the row sorted.
    have = np.where(table.positions == NO_PROBE, width - 1, table.positions) + rows
    index = np.searchsorted(have.ravel(), np.maximum(wanted, 0) + rows)
    index = np.minimum(index, n * m - 1)
    found = (have.ravel()[index] == wanted + rows) & (wanted != NO_PROBE)
    return np.where(found, index % m, -1)


def _packed(positions: IntArray) -> IntArray:
    """Pack positions to the left and drop columns that no row needs, but keep one."""
    order = np.argsort(positions == NO_PROBE, axis=1, kind="stable")
    most = max(1, int((positions != NO_PROBE).sum(axis=1).max(initial=0)))
    return np.take_along_axis(positions, order, axis=1)[:, :most]
