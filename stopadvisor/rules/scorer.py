"""A rule without its threshold: what turns probes into scores, stops, losses and costs.

Fits nothing and chooses nothing.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.costs import Asking, Costing, Serving, TokenCounts, stopped_counts
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.rules.features import LinearModel, feature_array
from stopadvisor.rules.losses import LOST, Loss
from stopadvisor.rules.schedules import Schedule
from stopadvisor.rules.scores import scalar_scores
from stopadvisor.stats.bounds import StopCurve

__all__ = ["Scorer"]

Table = TypeVar("Table", bound=ProbeTable)

_CERTAIN = sys.float_info.max
"""A score that reaches every threshold."""


@dataclass(frozen=True)
class Scorer:
    """A rule without its threshold: everything that turns probes into scores.

    `view` gives the probes that the rule makes; all other methods take such a view.
    """

    family: str
    schedule: Schedule
    model: LinearModel | None

    @property
    def asking(self) -> Asking:
        """Where it forces an answer on its way to a stop."""
        return Asking(self.family != FIXED_BUDGET, self.schedule.stop_at)

    def view(self, table: Table) -> Table:
        """The table at the probes that this rule makes, and at no others."""
        return self.schedule.view(table)

    def decides(self, view: ProbeTable) -> BoolArray:
        """Where the score decides, (n_questions, n_probes): a live probe, not the last resort."""
        return view.live & ~self._is_last(view)

    def scores(self, view: ProbeTable) -> FloatArray:
        """Linear scores, (n_questions, n_probes); the largest float where the rule stops anyway."""
        if self.model is None:
            scores = scalar_scores(self.family, view)
        else:
            scores = self.model.scores(feature_array(view, names=self.model.features))
        return self.completed(scores, view)

    def completed(self, scores: FloatArray, view: ProbeTable) -> FloatArray:
        """Scores of another origin, with the largest float where the rule stops anyway."""
        if self.schedule.stop_at is None:
            return scores
        return np.where(self._is_last(view), _CERTAIN, scores)

    def _is_last(self, view: ProbeTable) -> BoolArray:
        """Positions at which everybody is stopped; (n_questions or 1, n_probes)."""
        positions = view.positions_at(range(view.n_checkpoints))
        if self.schedule.stop_at is None:
            return np.zeros(positions.shape, dtype=bool)
        return np.asarray(positions == self.schedule.stop_at)

    def curve(self, view: ProbeTable, thresholds: FloatArray) -> StopCurve:
        """Where each question stops, at each threshold."""
        return StopCurve.build(self.scores(view), view.live, thresholds)

    def stops(self, view: ProbeTable, threshold: float) -> IntArray:
        """Where each question stops at one threshold; n_probes where it never does."""
        return self.curve(view, np.array([threshold])).stops(0)

    def losses(self, view: GradedTable, loss: Loss = LOST) -> IntArray:
        """What each question counts by place of stopping, shape (n_questions, n_probes + 1)."""
        return loss.of(view)

    def counts(self, view: ProbeTable, serving: Serving) -> TokenCounts:
        """Tokens by place of stopping; see `costs.stopped_counts`."""
        return stopped_counts(view, serving, asking=self.asking)

    def costs(self, view: ProbeTable, costing: Costing) -> FloatArray:
        """Cost of each question by place of stopping, (n_questions, n_probes + 1)."""
        return self.counts(view, costing.serving).weighed(costing.weights)
