"""A rule without its threshold: it turns probes into scores, stops and costs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.costs import Asking, Costing, stopped_counts
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.rules.features import LinearModel, feature_array
from stopadvisor.rules.schedules import Schedule, view_at
from stopadvisor.rules.scores import scalar_scores
from stopadvisor.stats.bounds import StopCurve

__all__ = ["Scorer"]

Table = TypeVar("Table", bound=ProbeTable)

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
        positions = view.positions_at(range(view.n_checkpoints))
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
