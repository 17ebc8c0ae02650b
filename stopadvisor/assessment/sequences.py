"""Threshold sequences: a rule with its thresholds in testing order, measured on fit questions.

A *scorer* is the rule that production runs: a family, its schedule and, if learned, its fitted
model.  A *threshold sequence* adds the thresholds, in the order in which calibration will test
them.  Fit questions are scored by models that never saw them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from stopadvisor.assessment.limits import BlockCounts, FitLimits, Shares, block_counts
from stopadvisor.assessment.settings import Settings
from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.constants import N_FOLDS
from stopadvisor.ground.errors import CalibrationError, ProbeError
from stopadvisor.ground.progress import tracked
from stopadvisor.probes.grouping import group_numbers
from stopadvisor.probes.outcomes import FitQuestions, GradedTable, require_fit
from stopadvisor.probes.table import ProbeTable, commonly_probed, grid_positions, probed_markers
from stopadvisor.rules.costs import Costing
from stopadvisor.rules.families import AGREEMENT_FAMILIES, FIXED_BUDGET, RUNG_FAMILIES
from stopadvisor.rules.features import OPEN_FEATURES, LinearModel, feature_array
from stopadvisor.rules.losses import Guarantee, Loss
from stopadvisor.rules.outcomes import Outcome, measure
from stopadvisor.rules.scorer import Schedule, Scorer, view_at
from stopadvisor.rules.scores import fit_logistic, scalar_scores
from stopadvisor.stats.bounds import StopCurve

__all__ = [
    "FREE_FEATURES", "FULL_FEATURES", "MOST_THRESHOLDS", "SHORT_FEATURES", "FeatureSet", "FitData",
    "ThresholdSequence", "learned_sequence", "readable", "scalar_sequence", "score_by_folds",
    "sequence_of",
]  # fmt: skip

_MOST_QUESTIONS = 4000
"""Most fit questions used; more do not improve the choice."""
_MOST_BLOCKS = 1000
MOST_THRESHOLDS = 400
"""Most thresholds of a sequence: dense enough for a test to end close to the allowed risk."""


@dataclass(frozen=True)
class FeatureSet:
    """Features of a learned rule, and its ridge penalty."""

    names: tuple[str, ...]
    """Names, without log-probabilities and entropies, which are added if recorded."""
    ridge: float


SHORT_FEATURES = FeatureSet(("log_position", "log_run"), 1.0)
"""Few features, for few fit questions."""
FULL_FEATURES = FeatureSet(
    ("log_position", "log_run", "vote_fraction", "log_votes", "marker_density"), 30.0
)
"""More features, with a strong penalty: along many probes they are correlated."""
FREE_FEATURES = FeatureSet((*FULL_FEATURES.names, "position", "previous_match"), 1.0)
"""More features, with a weak penalty, for few probes per trace."""


@dataclass(frozen=True)
class FitData:
    """Fit questions, with the folds, blocks and costs that every sequence needs."""

    table: FitQuestions
    folds: IntArray  # (n_questions,) by group
    blocks: IntArray  # (n_questions,) unit of resampling
    n_blocks: int
    """One block per group, up to `_MOST_BLOCKS`."""
    costing: Costing
    full_cost: FloatArray  # (n_questions,)
    guarantees: tuple[Guarantee, ...]
    """Guarantees whose losses are counted along every sequence."""
    others: ProbeTable | None = None
    """Questions of the other parts, without outcomes: rules probe only where these were probed."""
    _views: dict[Schedule, FitQuestions] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def build(
        cls, table: FitQuestions, settings: Settings, others: ProbeTable | None = None
    ) -> FitData:
        """Prepare fit questions, at most 4,000 of them; CalibrationError for too few."""
        require_fit(table)
        n = table.n_questions
        if n == 0:
            raise CalibrationError("no fit questions: nothing can be chosen")
        if n > _MOST_QUESTIONS:
            # Evenly spaced: the file may be sorted by subject.
            table = table.take(np.linspace(0, n - 1, _MOST_QUESTIONS).astype(np.int64))
        groups = group_numbers(table)
        n_groups = int(groups.max()) + 1
        if n_groups < N_FOLDS:
            raise CalibrationError(
                f"choosing a rule needs at least {N_FOLDS} different fit questions, got {n_groups}"
            )
        n_blocks = min(n_groups, _MOST_BLOCKS)
        return cls(
            table,
            groups % N_FOLDS,
            groups % n_blocks,
            n_blocks,
            settings.costing,
            settings.costing.full(table),
            settings.guarantees_on(table.graded_by),
            others,
        )

    @property
    def loss(self) -> Loss:
        """Loss of the first guarantee."""
        return self.guarantees[0].counted

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """Positions at which every question of every part was probed if still thinking."""
        shared = grid_positions(self.table)
        return shared if self.others is None else commonly_probed(self.others, shared)

    @cached_property
    def probed_markers(self) -> int | None:
        """`table.probed_markers` over the questions of all parts."""
        parts = (self.table,) if self.others is None else (self.table, self.others)
        counts = [count for part in parts if (count := probed_markers(part)) is not None]
        return min(counts, default=None)

    def was_probed(self, schedule: Schedule) -> bool:
        """Whether every question of every part was probed wherever a schedule probes it."""
        try:
            self.view(schedule)
            if self.others is not None:
                view_at(schedule, self.others)
        except ProbeError:
            return False
        return True

    @property
    def block_sizes(self) -> IntArray:
        """Traces in each block, shape (n_blocks,)."""
        return np.bincount(self.blocks, minlength=self.n_blocks)

    def view(self, schedule: Schedule) -> FitQuestions:
        """Fit questions at the probes of a schedule; the same object each time."""
        if schedule not in self._views:
            self._views[schedule] = view_at(schedule, self.table)
        return self._views[schedule]

    def costs(self, scorer: Scorer, view: GradedTable) -> FloatArray:
        """Cost of each question for each place of stopping, (n_questions, n_probes + 1)."""
        return scorer.costs(view, self.costing)

    def outcome(self, sequence: ThresholdSequence, index: int) -> Outcome:
        """Measure a rule at one of its thresholds, out of fold."""
        scorer, view = sequence.scorer, sequence.view
        stops, costs = sequence.curve.stops(index), self.costs(scorer, view)
        return measure(view, stops, costs, self.full_cost, loss=self.loss)


@dataclass(frozen=True)
class ThresholdSequence:
    """A rule with its thresholds in testing order, measured on fit questions."""

    scorer: Scorer
    """The rule without its threshold."""
    view: FitQuestions
    """Fit questions at the rule's probes."""
    scores: FloatArray  # (n_questions, n_probes)
    """On the linear scale; out of fold for learned rules."""
    thresholds: FloatArray  # (n_thresholds,) linear scale, strictly descending
    curve: StopCurve
    """Out-of-fold stops of the fit questions."""
    block_costs: FloatArray  # (n_blocks, n_thresholds)
    losses: FloatArray  # (n_thresholds,)
    costs: FloatArray  # (n_thresholds,)
    counts: tuple[BlockCounts, ...]
    """Counts of each guarantee."""
    full_cost: float
    """Cost of full thinking on all fit questions."""

    @cached_property
    def savings(self) -> FloatArray:
        """Net saving at each threshold in percent, (n_thresholds,)."""
        return np.asarray(100 * (1 - self.costs / self.full_cost), dtype=np.float64)

    @cached_property
    def saves(self) -> BoolArray:
        """Whether each threshold saves anything, (n_thresholds,)."""
        return np.asarray(self.costs < self.full_cost)

    @property
    def useful_risk(self) -> float | None:
        """Fit risk at the most careful threshold that saves, at least 0; None if none saves."""
        if not self.saves.any():
            return None
        return max(float(self.losses[self.saves.argmax()]), 0.0) / self.view.n_questions

    @property
    def useful_shares(self) -> tuple[Shares, ...] | None:
        """Fit shares of each guarantee at the threshold of `useful_risk`."""
        if not self.saves.any():
            return None
        return tuple(part.shares(int(self.saves.argmax())) for part in self.counts)

    def index(self, limit: FitLimits) -> int:
        """Last threshold before the first that exceeds the limit; -1 for none."""
        return int(limit.last(self.counts, np.ones((1, len(self.block_costs))))[0])

    def costs_at(self, counts: FloatArray, index: IntArray, full: FloatArray) -> FloatArray:
        """Cost of each resample at its own threshold, `full` where that is -1; (n_resamples,)."""
        # Few distinct thresholds occur: multiply by those columns only.
        used, inverse = np.unique(index, return_inverse=True)
        columns = self.block_costs[:, np.maximum(used, 0)].astype(np.float32)
        costs = (counts @ columns).astype(np.float64)[np.arange(len(counts)), inverse]
        return np.where(index >= 0, costs, full)


# --- Scores of fit questions ----------------------------------------------------------------------


def readable(family: str, scorer: Scorer, view: FitQuestions) -> bool:
    """Whether the family's signal is known at every probe where the score decides."""
    decides = scorer.decides(view)
    if not decides.any():
        return False
    if family in ("confidence", "confidence-leap", "deer"):
        return _known(view, view.mean_logprob, decides)
    return family != "entropy" or _known(view, view.mean_entropy, decides)


def _known(view: FitQuestions, values: FloatArray, decides: BoolArray) -> bool:
    return view.entropy_source != "none" and bool(np.isfinite(values[decides]).all())


def scalar_sequence(fit: FitData, family: str, schedule: Schedule) -> ThresholdSequence | None:
    """Measure a family without a model; None if its signal is missing."""
    scorer = Scorer(family, schedule, None)
    view = fit.view(schedule)
    if not readable(family, scorer, view):
        return None
    return sequence_of(fit, scorer, view, scalar_scores(family, view))


def learned_sequence(
    fit: FitData, family: str, schedule: Schedule, features: FeatureSet
) -> ThresholdSequence | None:
    """Fit a model, and measure it on fit questions scored by models that never saw them.

    ``learned-keeps`` predicts that stopping loses nothing: for lost answers, that the reply is
    right or full thinking is wrong too.  Other families predict that the reply is right.  None
    if a training fold has only one class of labels.

    Notes
    -----
    Training uses only probes at which the score decides.  Questions have equal weight, however
    often they were probed.
    """
    bare = Scorer(family, schedule, None)
    view = fit.view(schedule)
    rows = bare.decides(view)  # (n_questions, n_probes)
    if not rows.any():
        return None
    names = list(features.names)
    if _known(view, view.mean_logprob, rows):
        names.append("answer_log_odds")
        if features is FREE_FEATURES:
            names.append("answer_logprob")
    if features is not SHORT_FEATURES and _known(view, view.mean_entropy, rows):
        names.append("answer_entropy")
    if view.closed_by_itself is not None:
        names += OPEN_FEATURES
    labels = view.stop_correct
    if family == "learned-keeps":
        labels = fit.loss.of(view)[:, :-1] <= 0
    x = feature_array(view, names=names)
    # Otherwise a question with many probes would outweigh several with few.
    share = rows / np.maximum(rows.sum(axis=1, keepdims=True), 1)

    def fitted(train: BoolArray) -> LinearModel:
        weights = share[train]
        weights = weights * (weights.size / weights.sum())
        return fit_logistic(x[train], labels[train], names, weights=weights, ridge=features.ridge)

    found = score_by_folds(fit, rows, x, labels, fitted)
    if found is None:
        return None
    model, scores = found
    return sequence_of(fit, Scorer(family, schedule, model), view, scores)


def score_by_folds(
    fit: FitData,
    rows: BoolArray,
    x: FloatArray,
    labels: BoolArray,
    fitted: Callable[[BoolArray], LinearModel],
) -> tuple[LinearModel, FloatArray] | None:
    """Fit a model on all rows, and score each question by one that never saw it.

    None if all rows, or those of a training fold, have only one class of labels.

    Parameters
    ----------
    rows, labels : ndarray of bool, shape (n_questions, n_probes)
        Probes to train on, and the labels to predict.
    x : ndarray of float, shape (n_questions, n_probes, n_features)
    fitted : callable
        Fits a model on a mask of rows.
    """
    parts = [rows, *(rows & (fit.folds != fold)[:, None] for fold in range(N_FOLDS))]
    if any(labels[part].all() or not labels[part].any() for part in parts):
        return None
    model, scores = fitted(rows), np.empty(rows.shape)
    for fold in tracked("fitting a rule", range(N_FOLDS)):
        held = fit.folds == fold
        scores[held] = fitted(parts[fold + 1]).scores(x[held])
    return model, scores


# --- Thresholds -----------------------------------------------------------------------------------


def sequence_of(
    fit: FitData, scorer: Scorer, view: FitQuestions, scores: FloatArray
) -> ThresholdSequence:
    """Order the thresholds of a rule and measure it at each; arguments as in the result."""
    thresholds = _thresholds(scorer, view, scores)
    curve = StopCurve.build(scorer.completed(scores, view), view.live, thresholds)
    losses = fit.loss.of(view)
    costs = fit.costs(scorer, view)
    return ThresholdSequence(
        scorer,
        view,
        scores,
        thresholds,
        curve,
        curve.totals(costs, fit.blocks, fit.n_blocks).astype(np.float32),
        curve.totals(losses)[0].round(),
        curve.totals(costs)[0],
        tuple(block_counts(view, each, curve, fit.blocks, fit.n_blocks) for each in fit.guarantees),
        float(fit.full_cost.sum()),
    )


def _thresholds(scorer: Scorer, view: FitQuestions, scores: FloatArray) -> FloatArray:
    """Thresholds in testing order, strictly descending; shape (n_thresholds,).

    Based on every score at which some fit question would stop earlier, thinned evenly.  The first
    threshold lies above all scores: it stops nobody.  Each of the others lies halfway between a
    score and the next lower one: on the score itself, rounding on another machine could flip the
    question that set it.  Thresholds of a fixed budget are its positions, those of a ladder its
    steps.
    """
    decides = scorer.decides(view)
    if scorer.family == FIXED_BUDGET or scorer.family in RUNG_FAMILIES:
        return np.unique(scores[decides])[::-1]
    if scorer.family in AGREEMENT_FAMILIES:
        decides = decides & (scores > 0)  # an answer that has not stood is no reason to stop
    best = np.maximum.accumulate(np.where(decides, scores, -np.inf), axis=1)
    rises = np.ones(best.shape, dtype=bool)
    rises[:, 1:] = best[:, 1:] > best[:, :-1]
    values = np.unique(best[rises & decides])
    if not values.size:
        return np.array([1.0])
    below = np.append(0.0 if scorer.family in AGREEMENT_FAMILIES else values[0], values[:-1])
    halfway = (values + below) / 2
    at = np.where(halfway > below, halfway, values)
    if at.size >= MOST_THRESHOLDS:
        kept = np.linspace(0, at.size - 1, MOST_THRESHOLDS - 1).round().astype(np.int64)
        at = at[np.unique(kept)]
    return np.append(at, values[-1] + 1.0)[::-1]
