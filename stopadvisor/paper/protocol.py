"""The paper's protocol, from scores to the comparison that ``--protocol paper`` prints.

Out-of-fold scores over all questions, a 40/60 split, a threshold grid per family, Hoeffding with a
union bound, the cheapest feasible candidate, and a paired bootstrap with frozen thresholds.  This
reproduces the paper; to deploy, use `assess` and `calibrate`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.constants import (
    PAPER_BOOTSTRAP_RESAMPLES,
    PAPER_BOOTSTRAP_SEED,
    PAPER_CACHED_WEIGHT,
    PAPER_CALIBRATION_SHARE,
    PAPER_SPLIT_SEED,
    PROBE_CAP,
)
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.families import SCALAR_FAMILIES
from stopadvisor.rules.features import FEATURES, feature_array
from stopadvisor.rules.losses import lost_correct
from stopadvisor.rules.scores import out_of_fold, paper_folds, scalar_scores
from stopadvisor.stats.intervals import Interval, block_sums, interval, resample_counts

__all__ = [
    "MatchedRisk", "PaperRule", "PaperSetting", "first_stops", "match_risk", "operating_points",
    "paper_costs", "paper_probability", "paper_split", "threshold_grid",
]  # fmt: skip

_GRID_QUANTILES = np.unique(np.concatenate([[0, 0.005], np.arange(1, 100) / 100, [0.995, 1.0]]))
_MOST_UNIQUE_SCORES = 500
"""If there are at most this many distinct scores, all join the grid."""


@dataclass(frozen=True)
class PaperRule:
    """A rule chosen on calibration questions and measured on test questions."""

    feasible: bool
    """Whether a threshold keeps the risk."""
    family: str
    """Family of the cheapest feasible candidate; the first if none is feasible."""
    threshold: float
    """Stop when the score reaches it."""
    candidates: int
    """Pairs of family and threshold that were tried: K of the union bound."""
    test_risk: float
    """Share of the test questions that lose a right answer."""
    test_accuracy: float
    """Accuracy on the test questions."""
    think_saving_pct: float
    """Percent of thinking tokens saved on the test questions."""
    total_saving_pct: float
    """Percent of all tokens saved on the test questions, probes at their cap."""


@dataclass(frozen=True)
class MatchedRisk:
    """Learned against best scalar at one risk target."""

    alpha: float
    """The risk target of both sides."""
    learned: PaperRule
    """The best rule that combines the signals."""
    scalar: PaperRule
    """The best rule of one signal."""
    delta_saving_pp: Interval
    """Saving of learned minus scalar, in percentage points.  As in the published scripts, it is
    given even if a side is not feasible and so never stops."""
    verdict: str
    """`learned better`, `scalar better`, `comparable` or `inconclusive`."""

    @property
    def difference(self) -> Interval | None:
        """`delta_saving_pp` if both sides are feasible, else None."""
        both = self.learned.feasible and self.scalar.feasible
        return self.delta_saving_pp if both else None


@dataclass(frozen=True)
class PaperSetting:
    """The arrays of a table that the protocol uses."""

    correct: BoolArray  # (n_questions, n_checkpoints)
    loss: BoolArray  # (n_questions, n_checkpoints)
    costs: PaperCosts
    scores: Mapping[str, FloatArray]  # family -> (n_questions, n_checkpoints)
    """Probabilities for ``learned`` and ``confidence``, not their log-odds or logarithms."""

    @classmethod
    def build(cls, table: GradedTable) -> PaperSetting:
        """Compute scores and costs of all questions; the learned score is out of fold.

        Full thinking is the last checkpoint, whatever the table's reference, and each probe is
        charged the paper's cap.

        Raises CalibrationError: there are fewer than 10 questions, or all labels are alike.
        """
        n = table.n_questions
        if n < 10:
            raise CalibrationError(f"the paper protocol needs at least 10 questions, got {n}")
        correct = table.correct
        scores = {"learned": paper_probability(table, correct)}
        for family in SCALAR_FAMILIES:
            scores[family] = scalar_scores(family, table)
        scores["confidence"] = np.exp(scores["confidence"])
        loss = lost_correct(correct, correct[:, -1])[:, :-1]
        return cls(correct, loss, paper_costs(table), scores)


def paper_probability(
    table: GradedTable, labels: BoolArray, names: Sequence[str] = FEATURES
) -> FloatArray:
    """Return the out-of-fold probability of `labels` by logistic regression on features.

    Both have shape (n_questions, n_checkpoints).
    """
    features, folds = feature_array(table, names), paper_folds(table.n_questions)
    return np.asarray(expit(out_of_fold(features, labels, folds)))


def first_stops(scores: FloatArray, threshold: float) -> IntArray:
    """Return each question's first checkpoint that reaches the threshold, else the last one.

    Shape (n_questions,).
    """
    hit = scores >= threshold
    hit[:, -1] = True
    return np.asarray(hit.argmax(axis=1), dtype=np.int64)


def threshold_grid(scores: FloatArray) -> FloatArray:
    """Return the candidate thresholds of a family, ascending; the last one never stops."""
    distinct = np.unique(scores)
    parts = [np.quantile(scores, _GRID_QUANTILES), [distinct[-1] + 1]]
    if distinct.size <= _MOST_UNIQUE_SCORES:
        parts.append(distinct)
    return np.unique(np.concatenate(parts))


def _at(values: NDArray[np.generic], stops: IntArray) -> FloatArray:
    return np.take_along_axis(values, stops[:, None], axis=1)[:, 0].astype(np.float64)


@dataclass(frozen=True)
class _Candidates:
    """Calibration risk and cost of one family's thresholds."""

    family: str
    grid: FloatArray  # (n_thresholds,)
    risk: FloatArray  # (n_thresholds,)
    cost: FloatArray  # (n_thresholds,)


def _candidates(setting: PaperSetting, family: str, rows: IntArray) -> _Candidates:
    scores = setting.scores[family][rows]
    grid = threshold_grid(scores)
    stops = [first_stops(scores, t) for t in grid.tolist()]
    risk = np.array([_at(setting.loss[rows], s).mean() for s in stops])
    cost = np.array([_at(setting.costs.total[rows], s).mean() for s in stops])
    return _Candidates(family, grid, risk, cost)


def _choose(
    setting: PaperSetting,
    families: Sequence[_Candidates],
    n_calibration: int,
    test: IntArray,
    alpha: float,
    delta: float,
) -> tuple[PaperRule, FloatArray]:
    """Return the cheapest feasible candidate, and its tokens for each test question."""
    k = sum(len(c.grid) for c in families)
    slack = math.sqrt(math.log(k / delta) / (2 * n_calibration))
    best: tuple[float, str, float] | None = None
    for c in families:
        feasible = np.flatnonzero(c.risk + slack <= alpha)
        if feasible.size:
            i = feasible[np.argmin(c.cost[feasible])]
            if best is None or c.cost[i] < best[0]:
                best = (float(c.cost[i]), c.family, float(c.grid[i]))
    _, family, threshold = best or (math.inf, families[0].family, float(families[0].grid[-1]))
    stops = first_stops(setting.scores[family][test], threshold)
    total = _at(setting.costs.total[test], stops)
    thinking = _at(setting.costs.thinking[test], stops)
    point = PaperRule(
        best is not None,
        family,
        threshold,
        k,
        float(_at(setting.loss[test], stops).mean()),
        float(_at(setting.correct[test], stops).mean()),
        float(100 * (1 - thinking.mean() / setting.costs.full_thinking[test].mean())),
        float(100 * (1 - total.mean() / setting.costs.full_total[test].mean())),
    )
    return point, total


def _verdict(learned: PaperRule, scalar: PaperRule, delta: Interval) -> str:
    if not (learned.feasible and scalar.feasible):
        return "inconclusive"
    if delta.low > 0:
        return "learned better"
    return "scalar better" if delta.high < 0 else "comparable"


def paper_split(n_questions: int, seed: int = PAPER_SPLIT_SEED) -> tuple[IntArray, IntArray]:
    """Return the rows of the 40 % calibration and the 60 % test questions."""
    order = np.random.default_rng(seed).permutation(n_questions)
    n_calibration = int(PAPER_CALIBRATION_SHARE * n_questions)
    return order[:n_calibration], order[n_calibration:]


def operating_points(
    setting: PaperSetting, calibration: IntArray, test: IntArray, *, alpha: float, delta: float
) -> tuple[PaperRule, PaperRule]:
    """Return the learned and the best scalar rule at one risk target."""
    kinds = [("learned",), SCALAR_FAMILIES]
    sides = [[_candidates(setting, family, calibration) for family in kind] for kind in kinds]
    learned, scalar = (
        _choose(setting, side, calibration.size, test, alpha, delta)[0] for side in sides
    )
    return learned, scalar


def match_risk(
    setting: PaperSetting,
    calibration: IntArray,
    test: IntArray,
    *,
    alphas: Sequence[float],
    delta: float,
    rivals: Sequence[str] = SCALAR_FAMILIES,
    n_resamples: int = PAPER_BOOTSTRAP_RESAMPLES,
) -> tuple[MatchedRisk, ...]:
    """Compare the learned with the best scalar rule at each risk target.

    Parameters
    ----------
    calibration, test : ndarray of int
        Rows that choose thresholds, and rows that measure them.
    rivals : sequence of str
        Families that compete with the learned rule, by their cheapest feasible threshold; one
        union bound covers them all.
    n_resamples : int
        Resamples of the paired bootstrap; thresholds are frozen.

    Paper, Section "Lost-Correct Risk Calibration" and Appendix "Reproducibility Manifest".
    """
    learned = [_candidates(setting, "learned", calibration)]
    others = [_candidates(setting, family, calibration) for family in rivals]
    n = calibration.size
    chosen = [
        (
            alpha,
            _choose(setting, learned, n, test, alpha, delta),
            _choose(setting, others, n, test, alpha, delta),
        )
        for alpha in alphas
    ]
    # All alphas share the resamples, so one matrix product serves them.
    rng = np.random.default_rng(PAPER_BOOTSTRAP_SEED)
    difference = np.stack([scalar[1] - point[1] for _, point, scalar in chosen], axis=1)
    full = setting.costs.full_total[test]
    blocks = block_sums(np.column_stack([difference, full]))
    counts = resample_counts(len(blocks), n_resamples, rng=rng)
    sums = counts @ blocks.astype(np.float32)
    deltas = 100 * sums[:, :-1].astype(np.float64) / sums[:, -1:]  # (n_resamples, n_alphas)

    rows = []
    for k, (alpha, (point, _), (scalar, _)) in enumerate(chosen):
        spread = interval(deltas[:, k])
        rows.append(MatchedRisk(alpha, point, scalar, spread, _verdict(point, scalar, spread)))
    return tuple(rows)


@dataclass(frozen=True)
class PaperCosts:
    """Tokens under the paper's accounting, every probe at its cap."""

    thinking: FloatArray  # (n_questions, n_checkpoints) min(T, B_j)
    total: FloatArray  # (n_questions, n_checkpoints) thinking + cap · (j + 1)
    full_thinking: FloatArray  # (n_questions,) T, whatever the last budget
    full_total: FloatArray  # (n_questions,) T + cap
    prefix_cache: FloatArray  # (n_questions, n_checkpoints)
    black_box: FloatArray  # (n_questions, n_checkpoints)


def paper_costs(table: ProbeTable) -> PaperCosts:
    """Compute the paper's capped costs under its three regimes.

    Paper, Section "Training and Metrics" (Eq. for C^cap) and Section "Deployment Cost".  As in
    the published scripts, prefix-cache adds 0.1 · B_j for each probe so far, black-box adds each
    probe's prefix.
    """
    thinking = table.think_tokens.astype(np.float64)
    steps = np.arange(1, table.n_checkpoints + 1)
    total = thinking + PROBE_CAP * steps
    full = table.trace_tokens.astype(np.float64)
    budgets = table.budgets.astype(np.float64)
    return PaperCosts(
        thinking,
        total,
        full,
        full + PROBE_CAP,
        total + PAPER_CACHED_WEIGHT * budgets * steps,
        total + np.cumsum(budgets),
    )
