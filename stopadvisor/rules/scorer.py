"""A rule without its threshold: what turns probes into scores, stops and losses.

Fits nothing and chooses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from stopadvisor.arrays import BoolArray, FloatArray
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.boosting import BoostedModel
from stopadvisor.rules.features import feature_array
from stopadvisor.rules.scores import LinearModel, scalar_scores
from stopadvisor.stats.bounds import StopCurve, lost_correct

__all__ = ["Scorer"]


@dataclass(frozen=True)
class Scorer:
    """A rule without its threshold: everything that turns probes into scores."""

    family: str
    schedule: tuple[int, ...]
    """Columns of the table."""
    model: LinearModel | BoostedModel | None

    def scores(self, table: ProbeTable) -> FloatArray:
        """Linear scores, shape (n_questions, n_scheduled)."""
        if self.model is None:
            return scalar_scores(self.family, table, self.schedule)
        return self.model.scores(feature_array(table, self.schedule, self.model.features))

    @property
    def is_learned(self) -> bool:
        """Whether a fitted model stands behind the scores."""
        return self.model is not None

    def curve(self, table: ProbeTable, thresholds: FloatArray) -> StopCurve:
        """Where each question of a table stops, at each threshold."""
        live = table.live[:, self.schedule]
        return StopCurve.build(self.scores(table), live, thresholds)

    def losses(self, table: GradedTable) -> BoolArray:
        """Lost-correct by place of stopping, shape (n_questions, n_scheduled + 1)."""
        return lost_correct(table.correct_online[:, self.schedule], table.full_correct)
