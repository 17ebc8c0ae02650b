"""The view of the table that a rule takes: the same questions, with only the rule's own probes.

Scores, losses and costs of a rule are computed on its view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from stopadvisor.ground.arrays import BoolArray, IntArray
from stopadvisor.ground.errors import ProbeError
from stopadvisor.probes.table import NO_PROBE, ProbeTable, on_grid
from stopadvisor.probes.trigger import ListedTrigger, MarkerTrigger, Trigger
from stopadvisor.rules.climb import Climb

__all__ = [
    "Schedule", "at_budget", "commonly_probed", "grid_positions", "grid_view",
    "probed_markers", "view_at",
]  # fmt: skip

Table = TypeVar("Table", bound=ProbeTable)

Schedule = Trigger | Climb
"""Where a rule probes, or which replies it asks for."""


def view_at(schedule: Schedule, table: Table) -> Table:
    """The table at a rule's own probes.

    Raises
    ------
    ProbeError
        A question was not probed where the rule probes it, or its markers were not recorded.
    """
    if isinstance(schedule, Climb):
        return schedule.view(table)
    if isinstance(schedule, MarkerTrigger):
        return _at_markers(schedule, table)
    positions = schedule.positions
    if table.is_grid and table.n_questions:
        budgets = table.budgets.tolist()
        if set(positions) <= set(budgets):
            if len(budgets) == len(positions):
                return table
            return table.select([budgets.index(p) for p in positions])
    wanted = on_grid(positions, table.n_questions)
    live = table.trace_tokens[:, None] > wanted
    return table.at(_columns(table, wanted, live), positions)


def _at_markers(trigger: MarkerTrigger, table: Table) -> Table:
    """The table at each question's own markers."""
    if table.marker_positions is None:
        raise ProbeError(
            "a marker schedule needs probes at markers, and these traces were not searched "
            "for any: probe with --schedule marker"
        )
    markers, stop_at = table.marker_positions, trigger.stop_at
    keep = np.zeros(markers.shape, dtype=bool)
    last = np.zeros(len(markers), dtype=np.int64)
    made = np.zeros(len(markers), dtype=np.int64)
    counted = markers.shape[1] if trigger.max_markers is None else trigger.max_markers
    for j in range(min(counted, markers.shape[1])):  # each choice depends on the one before
        here = markers[:, j]
        keep[:, j] = (here != NO_PROBE) & (here - last >= trigger.min_gap)
        keep[:, j] &= made < trigger.max_probes
        if stop_at is not None:
            keep[:, j] &= here < stop_at
        last = np.where(keep[:, j], here, last)
        made += keep[:, j]
    wanted = np.where(keep, markers, NO_PROBE)
    if stop_at is not None:
        end = np.where(table.trace_tokens > stop_at, stop_at, NO_PROBE)
        wanted = np.column_stack([wanted, end])
    wanted = _packed(wanted)
    return table.at(_columns(table, wanted, wanted != NO_PROBE))


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
    wanted = on_grid(positions, table.n_questions)
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
    return view_at(ListedTrigger(positions), table)


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
