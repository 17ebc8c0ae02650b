"""Study `frontier`: peak gain over fixed budgets, with its interval, under four interpolations.

Paper, Tables "Primary Qwen3 results" and "Full in-distribution frontier summary" and the
interpolation sensitivity of Appendix "Interpolation and Failure-Case Checks".  Peaks are sought
where the published scripts seek them, the confidence leap over two numbers.  The deploy side reads
fit questions out of fold, charges what the serving regime charges, and adds the gain at the
threshold that calibration is expected to certify.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np

from stopadvisor.arrays import FloatArray
from stopadvisor.assessment.frontier import (
    Frontier,
    Interpolation,
    chain_frontier,
    gains,
    grid_frontier,
    served_budget_frontier,
)
from stopadvisor.paper.gain_bootstrap import resample_gains
from stopadvisor.paper.peaks import find_peak, fixed_budgets, peak_thresholds
from stopadvisor.paper.protocol import PaperSetting
from stopadvisor.paper.proxies import RulePeak
from stopadvisor.rules.families import SCALAR_FAMILIES, display_threshold
from stopadvisor.runs.access import View, basis_remarks
from stopadvisor.runs.sources import Source
from stopadvisor.stats.bootstrap import interval
from stopadvisor.studies.protocols import (
    FitSide,
    fit_sides,
    paper_setting,
    paper_views,
    study_settings,
)
from stopadvisor.studies.study import Cell, Column, StudyOptions, StudyResult, Table

__all__ = ["peak_intervals", "run", "spelled"]

_FAMILIES = ("learned", *SCALAR_FAMILIES)
_INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)

_RUNS = (
    Column("run", "Run"),
    Column("questions", "Questions"),
    Column("full_accuracy", "Full accuracy", "share"),
    Column("full_tokens", "Full tokens", "tokens"),
    Column("learned_peak", "Learned peak"),
    Column("best_scalar", "Best scalar"),
    Column("scalar_peak", "Scalar peak"),
    Column("difference", "Difference"),
    Column("difference_low", "95 % CI"),
    Column("difference_high", "high"),
)
_PEAKS = (
    Column("run", "Run"),
    Column("family", "Rule"),
    Column("threshold", "Threshold"),
    Column("peak_gain", "Peak gain"),
    Column("gain_low", "95 % CI"),
    Column("gain_high", "high"),
    Column("accuracy", "Accuracy", "share"),
    Column("think_tokens", "Thinking", "tokens"),
)
_INTERPOLATED = (
    Column("run", "Run"),
    Column("family", "Rule"),
    *(Column(how, how.capitalize()) for how in _INTERPOLATIONS),
)
_CURVES = (
    Column("run", "Run"),
    Column("family", "Rule"),
    Column("at", "Threshold or budget"),
    Column("think_tokens", "Thinking", "tokens"),
    Column("accuracy", "Accuracy", "share"),
    Column("gain", "Gain"),
)
_SERVED = (
    Column("run", "Run"),
    Column("family", "Rule"),
    Column("peak_gain", "Peak gain (fit)"),
    Column("threshold", "Threshold"),
    Column("fit_risk", "Risk (fit)", "share"),
    Column("fit_saving_pct", "Net saving (fit)", "%"),
    Column("gain", "Gain there"),
)


def spelled(found: RulePeak) -> str:
    """The threshold of a peak, or both its numbers, as a cell."""
    return ", ".join(f"{value:g}" for value in found.settings)


def peak_intervals(
    peaks: Mapping[str, RulePeak], setting: PaperSetting, options: StudyOptions
) -> dict[str, FloatArray]:
    """Resampled gain of each peak, thresholds frozen; the same resamples for all."""
    return resample_gains(
        {family: found.stops for family, found in peaks.items()},
        setting.costs.thinking,
        setting.correct,
        n_resamples=options.resamples,
        rng=np.random.default_rng(options.seed),
    )


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Peak gains, their intervals, and the curves behind them."""
    views = paper_views(sources)
    tables: dict[str, list[tuple[Cell, ...]]] = {
        name: [] for name in ("runs", "peaks", "interpolation", "curves")
    }
    for view in views:
        _paper_side(view, options, tables)
    sides, reasons = fit_sides(sources, study_settings(options))
    served = [row for side in sides for row in _served_rows(side)]
    return StudyResult(
        "frontier",
        'Tables "Primary Qwen3 results" and "Full in-distribution frontier summary"; Appendix '
        '"Interpolation and Failure-Case Checks"',
        ("paper", "deploy"),
        (
            Table("runs", "Learned against the strongest scalar", _RUNS, tuple(tables["runs"])),
            Table(
                "peaks",
                "Peak gain over fixed budgets",
                _PEAKS,
                tuple(tables["peaks"]),
                "the best point after the fact; intervals keep its threshold",
            ),
            Table(
                "interpolation",
                "Peak gain by how fixed budgets are read",
                _INTERPOLATED,
                tuple(tables["interpolation"]),
            ),
            Table(
                "served",
                f"On fit questions, as served ({options.serving})",
                _SERVED,
                tuple(served),
                "gain against closing every trace at one budget for the same net cost; the "
                "threshold is the one that calibration is expected to certify",
            ),
            Table("curves", "The curves", _CURVES, tuple(tables["curves"])),
        ),
        (*basis_remarks(views), *reasons),
    )


def _paper_side(
    view: View, options: StudyOptions, tables: Mapping[str, list[tuple[Cell, ...]]]
) -> None:
    setting = paper_setting(view)
    fixed = fixed_budgets(setting)
    peaks = {family: find_peak(family, view.table, setting, fixed) for family in _FAMILIES}
    resampled = peak_intervals(peaks, setting, options)
    for family, found in peaks.items():
        spread = interval(resampled[family])
        tables["peaks"].append(
            (
                view.label,
                family,
                spelled(found),
                found.gain,
                spread.low,
                spread.high,
                found.accuracy,
                found.cost,
            )
        )
        read = [find_peak(family, view.table, setting, fixed, how) for how in _INTERPOLATIONS]
        tables["interpolation"].append((view.label, family, *(point.gain for point in read)))
    best = max(SCALAR_FAMILIES, key=lambda family: peaks[family].gain)
    spread = interval(resampled["learned"] - resampled[best])
    tables["runs"].append(
        (
            view.label,
            view.table.n_questions,
            float(setting.correct[:, -1].mean()),
            float(view.table.trace_tokens.mean()),
            peaks["learned"].gain,
            best,
            peaks[best].gain,
            peaks["learned"].gain - peaks[best].gain,
            spread.low,
            spread.high,
        )
    )
    budgets = Frontier(view.table.budgets.astype(np.float64), fixed.cost, fixed.accuracy)
    curves = {"fixed budget": budgets}
    for family in _FAMILIES:
        scores = setting.scores[family]
        thresholds = peak_thresholds(family, scores)
        curves[family] = grid_frontier(scores, setting.costs.thinking, setting.correct, thresholds)
    for name, curve in curves.items():
        columns = (curve.at, curve.cost, curve.accuracy, gains(curve, fixed))
        rows = zip(*(c.tolist() for c in columns), strict=True)
        tables["curves"].extend((view.label, name, *row) for row in rows)


def _served_rows(side: FitSide) -> list[tuple[Cell, ...]]:
    """The deploy side: every family over all checkpoints, on fit questions."""
    unsorted = served_budget_frontier(side.fit)
    # A longer budget may cost less, where ending naturally is cheaper than being asked.
    order = np.argsort(unsorted.cost, kind="stable")
    fixed = Frontier(unsorted.at[order], unsorted.cost[order], unsorted.accuracy[order])
    rows: list[tuple[Cell, ...]] = []
    for chain in side.chains(tuple(range(side.fit.table.n_checkpoints))):
        family = chain.scorer.family
        above = gains(chain_frontier(side.fit, chain), fixed)
        position = chain.position(side.limit)
        at: tuple[Cell, ...] = (None, None, None, None)
        if position >= 0:
            at = (
                display_threshold(family, float(chain.thresholds[position])),
                float(chain.losses[position]) / side.fit.table.n_questions,
                side.saving(chain),
                float(above[position]),
            )
        rows.append((side.label, family, float(above.max()), *at))
    return rows
