"""A rule without its threshold: its view of the table, its scores, stops and costs.

The view holds the same questions with only the rule's own probes; all else is computed on it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.errors import ProbeError
from stopadvisor.probes.table import NO_PROBE, ProbeTable, grid_positions, on_grid
from stopadvisor.probes.trigger import ListedTrigger, MarkerTrigger, Trigger
from stopadvisor.rules.climb import Climb
from stopadvisor.rules.costs import Asking, Costing, stopped_counts
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.rules.features import LinearModel, feature_array
from stopadvisor.rules.scores import scalar_scores
from stopadvisor.stats.bounds import StopCurve

__all__ = ["Schedule", "Scorer", "grid_view", "view_at"]

Table = TypeVar("Table", bound=ProbeTable)

Schedule = Trigger | Climb
"""Where a rule probes, or which replies it asks for."""

_CERTAIN = sys.float_info.max
"""A score that reaches every threshold."""


@dataclass(frozen=True)
class Scorer:
    """A rule without its threshold.

    `view` selects the rule's probes; all other methods take such a view.
    """

    family: str
    schedule: Schedule
    model: LinearModel | None

    @property
    def asking(self) -> Asking:
        """Where the rule forces an answer before it stops."""
        return Asking(self.family != FIXED_BUDGET, self.schedule.stop_at)

    def view(self, table: Table) -> Table:
        """The table at this rule's probes and no others."""
        return view_at(self.schedule, table)

    def decides(self, view: ProbeTable) -> BoolArray:
        """Whether the score decides: at live probes before `stop_at`, (n_questions, n_probes)."""
        return view.live & ~self._is_last(view)

    def scores(self, view: ProbeTable) -> FloatArray:
        """Linear scores, (n_questions, n_probes); the largest float at `stop_at`."""
        if self.model is None:
            scores = scalar_scores(self.family, view)
        else:
            scores = self.model.scores(feature_array(view, names=self.model.features))
        return self.completed(scores, view)

    def completed(self, scores: FloatArray, view: ProbeTable) -> FloatArray:
        """Set scores at `stop_at` to the largest float."""
        if self.schedule.stop_at is None:
            return scores
        return np.where(self._is_last(view), _CERTAIN, scores)

    def _is_last(self, view: ProbeTable) -> BoolArray:
        """Whether each probe is at `stop_at`; (n_questions or 1, n_probes)."""
        positions = view.padded_positions
        if self.schedule.stop_at is None:
            return np.zeros(positions.shape, dtype=bool)
        return np.asarray(positions == self.schedule.stop_at)

    def curve(self, view: ProbeTable, thresholds: FloatArray) -> StopCurve:
        """Where each question stops, at each threshold."""
        return StopCurve.build(self.scores(view), view.live, thresholds)

    def stops(self, view: ProbeTable, threshold: float) -> IntArray:
        """Probe at which each question stops at one threshold; n_probes for never."""
        return self.curve(view, np.array([threshold])).stops(0)

    def costs(self, view: ProbeTable, costing: Costing) -> FloatArray:
        """Cost of each question for each place of stopping, (n_questions, n_probes + 1)."""
        counts = stopped_counts(view, costing.serving, asking=self.asking)
        return counts.weighed(costing.weights)


# --- Views ----------------------------------------------------------------------------------------


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
            "a marker schedule needs probes at markers, and these traces were not searched for any"
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


def grid_view(table: Table) -> Table:
    """The table at its `grid_positions`."""
    positions = grid_positions(table)
    if not positions:
        raise ProbeError(
            "these questions share no position at which all of them still thinking were probed"
        )
    return view_at(ListedTrigger(positions), table)


def _columns(table: ProbeTable, wanted: IntArray, live: BoolArray) -> IntArray:
    """Column of each wanted position, -1 if no probe happens there; (n_questions, n_wanted)."""
    columns = np.where(live, table.columns_of(wanted), -1)
    missing = live & (columns < 0)
    if missing.any():
        row, column = (int(k) for k in np.argwhere(missing)[0])
        raise ProbeError(
            f"question {table.ids[row]!r} was not probed at {int(wanted[row, column])} thinking "
            "tokens, where this rule probes it"
        )
    return columns


def _packed(positions: IntArray) -> IntArray:
    """Pack positions to the left and drop columns that no row needs, but keep one."""
    order = np.argsort(positions == NO_PROBE, axis=1, kind="stable")
    most = max(1, int((positions != NO_PROBE).sum(axis=1).max(initial=0)))
    return np.take_along_axis(positions, order, axis=1)[:, :most]
