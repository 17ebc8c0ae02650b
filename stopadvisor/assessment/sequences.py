"""Candidate rules on fit data: family × checkpoint schedule × threshold order.

A *scorer* is what production runs: a family, its schedule and, if learned, its fitted model.  A
*threshold sequence* is a scorer with its thresholds in the order in which calibration will test
them, measured on fit questions by models that never saw them.  Nothing here sees a calibration
question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stopadvisor.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.constants import N_FOLDS
from stopadvisor.errors import CalibrationError
from stopadvisor.probes.grouping import group_numbers
from stopadvisor.probes.outcomes import FitQuestions, require_fit
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.boosting import BoostedModel, fit_boosted
from stopadvisor.rules.costs import Serving as ServingRegime
from stopadvisor.rules.costs import TokenCounts, Weights, full_counts, stopped_counts
from stopadvisor.rules.families import LEARNED_FAMILIES, SCALAR_FAMILIES
from stopadvisor.rules.features import FEATURES, TEXT_FEATURES, feature_array
from stopadvisor.rules.scorer import Scorer
from stopadvisor.rules.scores import LinearModel, fit_logistic
from stopadvisor.stats.bounds import StopCurve

__all__ = [
    "MOST_THRESHOLDS",
    "FitData",
    "ThresholdSequence",
    "build_sequence",
    "candidate_schedules",
    "score_out_of_fold",
    "sequence_of",
]

_SMALLEST_FIT_FOR_BOOSTING = 200
"""Different questions; several traces of one count once."""
_SCHEDULE_SIZES = (6, 4, 3, 2)
_GRID = np.concatenate([[1.0, 0.9975, 0.995], np.arange(99, -1, -1) / 100])
"""Quantiles of the live scores that become thresholds, careful ones first."""
MOST_THRESHOLDS = _GRID.size
"""Of one sequence."""


def candidate_schedules(table: ProbeTable) -> tuple[tuple[int, ...], ...]:
    """Sub-grids of the probed budgets, from all of them down to two; all columns without a grid.

    Evenly spaced over the whole grid, without its first checkpoint (a no-thinking probe), without
    its first third, and over its first half: few probes can pay where ten cannot.  Under the
    ``last-checkpoint`` reference each ends with the last one, which gives the reference's answer.

    References
    ----------
    Paper, Appendix "Checkpoint Schedule Sweep"; six linear checkpoints are its default.
    """
    m = table.n_checkpoints
    if not table.is_grid:
        return (tuple(range(m)),)
    last = m - 1
    found: dict[tuple[int, ...], None] = {tuple(range(m)): None}
    for first, end in ((0, last), (1, last), (m // 3, last), (0, m // 2)):
        for size in _SCHEDULE_SIZES:
            if size > end - first + 1:
                continue
            columns = np.unique(np.linspace(first, end, size).round().astype(int))
            if table.reference == "last-checkpoint":
                columns = np.union1d(columns, [last])
            if columns.size >= min(2, m):
                found[tuple(columns.tolist())] = None
    return tuple(found)


@dataclass(frozen=True)
class FitData:
    """Fit questions with what every sequence needs of them."""

    table: FitQuestions
    folds: IntArray  # (n_questions,) by group
    blocks: IntArray  # (n_questions,) unit of resampling
    n_blocks: int
    """As many as there are groups, up to a limit."""
    serving: ServingRegime
    weights: Weights
    cache_block: int
    full_cost: FloatArray  # (n_questions,)

    @classmethod
    def build(
        cls,
        table: FitQuestions,
        *,
        serving: ServingRegime,
        weights: Weights,
        cache_block: int,
        most_blocks: int,
    ) -> FitData:
        """Prepare fit questions; raises CalibrationError for others, and when there are too few."""
        require_fit(table)
        groups = group_numbers(table)
        n_groups = int(groups.max()) + 1
        if n_groups < N_FOLDS:
            raise CalibrationError(
                f"choosing a rule needs at least {N_FOLDS} different fit questions, got {n_groups}"
            )
        n_blocks = min(n_groups, most_blocks)
        return cls(
            table,
            groups % N_FOLDS,
            groups % n_blocks,
            n_blocks,
            serving,
            weights,
            cache_block,
            full_counts(table).weighed(weights),
        )

    def counts(self, schedule: Sequence[int]) -> TokenCounts:
        """Tokens of every question for every place of stopping in a schedule."""
        return stopped_counts(self.table, schedule, self.serving, cache_block=self.cache_block)


@dataclass(frozen=True)
class ThresholdSequence:
    """A family over a schedule, its thresholds in testing order, measured on fit questions."""

    scorer: Scorer
    thresholds: FloatArray  # (n_thresholds,) linear scale, strictly descending
    curve: StopCurve
    """Out-of-fold stops of the fit questions."""
    block_losses: FloatArray  # (n_blocks, n_thresholds)
    block_costs: FloatArray  # (n_blocks, n_thresholds)
    losses: FloatArray  # (n_thresholds,)
    costs: FloatArray  # (n_thresholds,)

    def index(self, limit: float) -> int:
        """Last threshold before the first whose losses exceed `limit`; -1 if there is none.

        The same walk as calibration's, so that what is expected is what can be certified.
        """
        over = np.flatnonzero(self.losses > limit)
        return (int(over[0]) if over.size else self.losses.size) - 1

    def truncate(self, most_losses: float) -> ThresholdSequence:
        """Without the thresholds beyond the last whose fit losses are at most `most_losses`.

        Fit data alone say that those lie above the risk target: a lucky calibration must not
        reach them.  The first threshold always stays.
        """
        within = np.flatnonzero(self.losses <= most_losses)
        n = int(within[-1]) + 1 if within.size else 1
        thresholds = self.thresholds[:n]
        curve = StopCurve(thresholds, np.minimum(self.curve.low, n), np.minimum(self.curve.high, n))
        return ThresholdSequence(
            self.scorer,
            thresholds,
            curve,
            self.block_losses[:, :n],
            self.block_costs[:, :n],
            self.losses[:n],
            self.costs[:n],
        )

    def resampled_costs(
        self, counts: FloatArray, limits: FloatArray, full: FloatArray
    ) -> FloatArray:
        """Cost in each resample, every threshold chosen anew.

        Parameters
        ----------
        counts : ndarray of float, shape (n_resamples, n_blocks)
        limits : ndarray of float, shape (n_resamples,)
            Most losses allowed in each.
        full : ndarray of float, shape (n_resamples,)
            Cost of full thinking, taken where no threshold is allowed.

        Returns
        -------
        ndarray of float, shape (n_resamples,)
        """
        # float32 is exact for these counts, and half as much to move.
        losses = counts @ self.block_losses.astype(np.float32)  # (n_resamples, n_thresholds)
        over = losses > limits[:, None] + 1e-6
        index = np.where(over.any(axis=1), over.argmax(axis=1), over.shape[1]) - 1
        # Few distinct thresholds win: multiply by those columns only.
        used, inverse = np.unique(index, return_inverse=True)
        columns = self.block_costs[:, np.maximum(used, 0)].astype(np.float32)
        costs = (counts @ columns).astype(np.float64)[np.arange(len(counts)), inverse]
        return np.where(index >= 0, costs, full)


def _features_of(family: str) -> tuple[str, ...]:
    return TEXT_FEATURES if family == "learned-text" else FEATURES


def _fit(
    family: str, features: NDArray[np.float64], correct: BoolArray, rows: BoolArray
) -> LinearModel | BoostedModel:
    fit = fit_boosted if family == "learned-boosted" else fit_logistic
    return fit(features[rows], correct[rows], _features_of(family))


def _thresholds(scores: FloatArray) -> FloatArray:
    """Thresholds in testing order, descending; shape (n_thresholds,).

    Each lies halfway between a score and the next lower one: on the score itself, the rounding of
    another machine could flip the very question that set it.
    """
    distinct = np.unique(scores)
    at = np.unique(np.quantile(scores, _GRID, method="higher"))
    below = distinct[np.maximum(np.searchsorted(distinct, at) - 1, 0)]
    halfway = (at + below) / 2
    return np.where(halfway > below, halfway, at)[::-1]


def score_out_of_fold(
    fit: FitData, family: str, schedule: tuple[int, ...]
) -> tuple[Scorer, FloatArray] | None:
    """Fit one candidate, and score fit questions by models that never saw them.

    Returns
    -------
    tuple of Scorer and ndarray of float, shape (n_questions, n_scheduled), or None
        The scorer is fitted on all fit questions.  None where the family cannot be had on these
        data: one class of labels in a training fold, or too few questions for boosting.

    Notes
    -----
    Checkpoints at or after the end of a trace never train and never score: they do not occur
    online.
    """
    table = fit.table
    live = table.live[:, schedule]
    if not live.any():
        return None
    if family in SCALAR_FAMILIES:
        scorer = Scorer(family, schedule, None)
        return scorer, scorer.scores(table)
    if family not in LEARNED_FAMILIES:
        raise CalibrationError(
            f"family must be one of {SCALAR_FAMILIES + LEARNED_FAMILIES}, got {family!r}"
        )
    if family == "learned-boosted" and fit.n_blocks < _SMALLEST_FIT_FOR_BOOSTING:
        return None
    correct = table.stop_correct[:, schedule]
    features = feature_array(table, schedule, _features_of(family))
    scores = np.empty(correct.shape)
    for fold in range(N_FOLDS):
        held = fit.folds == fold
        train = live & ~held[:, None]
        labels = correct[train]
        if labels.all() or not labels.any():
            return None
        scores[held] = _fit(family, features, correct, train).scores(features[held])
    return Scorer(family, schedule, _fit(family, features, correct, live)), scores


def build_sequence(
    fit: FitData, family: str, schedule: tuple[int, ...]
) -> ThresholdSequence | None:
    """Measure one candidate on fit questions; None as `score_out_of_fold`."""
    found = score_out_of_fold(fit, family, schedule)
    return None if found is None else sequence_of(fit, *found)


def sequence_of(fit: FitData, scorer: Scorer, scores: FloatArray) -> ThresholdSequence:
    """Order the thresholds of scored fit questions and measure them.

    Parameters
    ----------
    scores : ndarray of float, shape (n_questions, n_scheduled)
        Out of fold, as `score_out_of_fold` gives them.
    """
    table, schedule = fit.table, scorer.schedule
    live = table.live[:, schedule]
    thresholds = _thresholds(scores[live])
    curve = StopCurve.build(scores, live, thresholds)
    costs = fit.counts(schedule).weighed(fit.weights)
    block_losses = curve.totals(scorer.losses(table), fit.blocks, fit.n_blocks)
    block_costs = curve.totals(costs, fit.blocks, fit.n_blocks)
    return ThresholdSequence(
        scorer,
        thresholds,
        curve,
        block_losses,
        block_costs,
        block_losses.sum(axis=0).round(),
        block_costs.sum(axis=0),
    )
