"""Study `frontier`: peak gain over fixed budgets, with its interval, under four interpolations.

Paper, Tables "Primary Qwen3 results" and "Full in-distribution frontier summary" and the
interpolation sensitivity of Appendix "Interpolation and Failure-Case Checks".  Peaks are searched
over the thresholds of the published scripts; those of confidence-leap are pairs of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import numpy as np

from stopadvisor.assessment.frontier import Frontier, Interpolation, gains, grid_frontier
from stopadvisor.paper.peaks import find_peak, fixed_budgets, peak_thresholds
from stopadvisor.rules.families import SCALAR_FAMILIES
from stopadvisor.runs.access import View
from stopadvisor.stats.bootstrap import interval
from stopadvisor.studies.runner import gains_resampled, paper_setting
from stopadvisor.studies.tables import Outline, Row, StudyOptions, layout

__all__ = ["OUTLINE", "rows"]

# fmt: off
_RUNS = layout("runs", "Learned against the strongest scalar", run="Run", questions="Questions",
    full_accuracy=("Full accuracy", "share"), full_tokens=("Full tokens", "tokens"),
    learned_peak="Learned peak", best_scalar="Best scalar", scalar_peak="Scalar peak",
    difference="Difference", difference_ci="95 % CI")
_PEAKS = layout("peaks", "Peak gain over fixed budgets",
    "the best point after the fact; intervals keep its threshold", run="Run", family="Rule",
    threshold="Threshold", peak_gain="Peak gain", gain_ci="95 % CI", accuracy=("Accuracy", "share"),
    think_tokens=("Thinking", "tokens"))
_READ = layout("interpolation", "Peak gain by how fixed budgets are read", run="Run", family="Rule",
    linear="Linear", nearest="Nearest", floor="Floor", ceiling="Ceiling")
_CURVES = layout("curves", "The curves", run="Run", family="Rule", at="Threshold or budget",
    think_tokens=("Thinking", "tokens"), accuracy=("Accuracy", "share"), gain="Gain")
# fmt: on
OUTLINE = Outline(
    "frontier",
    'Tables "Primary Qwen3 results" and "Full in-distribution frontier summary"; Appendix '
    '"Interpolation and Failure-Case Checks"',
    (_RUNS, _PEAKS, _READ, _CURVES),
)


def rows(view: View, options: StudyOptions) -> Iterator[Row]:
    """Peak gains, their intervals, and the curves they lie on."""
    setting, run, families = paper_setting(view), view.label, ("learned", *SCALAR_FAMILIES)
    fixed = fixed_budgets(setting)
    budgets = Frontier(view.table.budgets.astype(np.float64), fixed.cost, fixed.accuracy)
    peaks = {family: find_peak(family, view.table, setting, fixed) for family in families}
    resampled = gains_resampled({f: p.stops for f, p in peaks.items()}, setting, options)
    curves = {"fixed budget": budgets}
    for family, best in peaks.items():
        yield _PEAKS.row(run=run, family=family, threshold=best.spelled, peak_gain=best.gain,
            gain_ci=interval(resampled[family]), accuracy=best.accuracy, think_tokens=best.cost,
        )  # fmt: skip
        hows: tuple[Interpolation, ...] = get_args(Interpolation)
        read = {how: find_peak(family, view.table, setting, fixed, how).gain for how in hows}
        yield _READ.row(run=run, family=family, **read)
        scores, thinking = setting.scores[family], setting.costs.thinking
        thresholds = peak_thresholds(family, scores)
        curves[family] = grid_frontier(scores, thinking, setting.correct, thresholds)
    strongest = max(SCALAR_FAMILIES, key=lambda family: peaks[family].gain)
    learned, scalar = peaks["learned"].gain, peaks[strongest].gain
    yield _RUNS.row(run=run, questions=view.table.n_questions,
        full_accuracy=float(setting.correct[:, -1].mean()),
        full_tokens=float(view.table.trace_tokens.mean()), learned_peak=learned,
        best_scalar=strongest, scalar_peak=scalar, difference=learned - scalar,
        difference_ci=interval(resampled["learned"] - resampled[strongest]),
    )  # fmt: skip
    for family, curve in curves.items():
        columns = (curve.at, curve.cost, curve.accuracy, gains(curve, fixed))
        for cells in zip(*(column.tolist() for column in columns), strict=True):
            yield Row(_CURVES, (run, family, *cells))
