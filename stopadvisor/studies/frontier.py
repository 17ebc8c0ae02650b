"""Study `frontier`: peak gain over fixed budgets, with its interval, under four interpolations.

Paper, Tables "Primary Qwen3 results" and "Full in-distribution frontier summary" and the
interpolation sensitivity of Appendix "Interpolation and Failure-Case Checks".  Peaks are sought
where the published scripts seek them, the confidence leap over two numbers.  The deploy protocol
reads fit questions out of fold, charges what the serving regime charges, and adds the gain at the
threshold that calibration is expected to certify.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from stopadvisor.arrays import FloatArray
from stopadvisor.assessment.frontier import (
    Frontier,
    Interpolation,
    gains,
    grid_frontier,
    sequence_frontier,
    served_budget_frontier,
)
from stopadvisor.paper.gain_bootstrap import resample_gains
from stopadvisor.paper.peaks import find_peak, fixed_budgets, peak_thresholds
from stopadvisor.paper.protocol import PaperSetting
from stopadvisor.paper.proxies import RulePeak
from stopadvisor.rules.families import SCALAR_FAMILIES, display_threshold
from stopadvisor.runs.access import View
from stopadvisor.runs.sources import Source
from stopadvisor.stats.bootstrap import interval
from stopadvisor.studies.protocols import DeployProtocol, paper_setting, study_both
from stopadvisor.studies.rows import Ends, Outline, Row, RunRow, column, ends
from stopadvisor.studies.study import StudyOptions, StudyResult

__all__ = ["OUTLINE", "RunPeak", "peak_intervals", "run", "spelled"]

_FAMILIES = ("learned", *SCALAR_FAMILIES)


class _Run(RunRow, table="runs", title="Learned against the strongest scalar"):
    questions: int = column("Questions")
    full_accuracy: float = column("Full accuracy", "share")
    full_tokens: float = column("Full tokens", "tokens")
    learned_peak: float = column("Learned peak")
    best_scalar: str = column("Best scalar")
    scalar_peak: float = column("Scalar peak")
    difference: float = column("Difference")
    difference_ci: Ends = ends("95 % CI")


class RunPeak(RunRow):
    """Peak gain of one rule of a run, thresholds frozen in its interval."""

    family: str = column("Rule")
    threshold: str = column("Threshold")
    peak_gain: float = column("Peak gain", of="gain")
    gain_ci: Ends = ends("95 % CI")


class _FrontierPeak(
    RunPeak,
    table="peaks",
    title="Peak gain over fixed budgets",
    note="the best point after the fact; intervals keep its threshold",
):
    accuracy: float = column("Accuracy", "share")
    think_tokens: float = column("Thinking", "tokens", of="cost")


class _Interpolated(RunRow, table="interpolation", title="Peak gain by how fixed budgets are read"):
    family: str = column("Rule")
    linear: float = column("Linear")
    nearest: float = column("Nearest")
    floor: float = column("Floor")
    ceiling: float = column("Ceiling")


class _FrontierServed(
    RunRow,
    table="served",
    title="On fit questions, as served ({serving})",
    note="gain against closing every trace at one budget for the same net cost; the threshold is "
    "the one that calibration is expected to certify",
):
    family: str = column("Rule")
    peak_gain: float = column("Peak gain (fit)")
    threshold: float | None = column("Threshold")
    fit_risk: float | None = column("Risk (fit)", "share", of="risk")
    fit_saving_pct: float | None = column("Net saving (fit)", "%", of="saving_pct")
    gain: float | None = column("Gain there")


class _FrontierPoint(RunRow, table="curves", title="The curves"):
    family: str = column("Rule")
    at: float = column("Threshold or budget")
    think_tokens: float = column("Thinking", "tokens")
    accuracy: float = column("Accuracy", "share")
    gain: float = column("Gain")


OUTLINE = Outline(
    "frontier",
    'Tables "Primary Qwen3 results" and "Full in-distribution frontier summary"; Appendix '
    '"Interpolation and Failure-Case Checks"',
    (_Run, _FrontierPeak, _Interpolated, _FrontierServed, _FrontierPoint),
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
    return study_both(OUTLINE, sources, options, _paper_rows, _served_rows)


def _paper_rows(view: View, options: StudyOptions) -> Iterator[Row]:
    setting = paper_setting(view)
    fixed = fixed_budgets(setting)
    peaks = {family: find_peak(family, view.table, setting, fixed) for family in _FAMILIES}
    resampled = peak_intervals(peaks, setting, options)

    def gain(family: str, how: Interpolation) -> float:
        return find_peak(family, view.table, setting, fixed, how).gain

    for family, found in peaks.items():
        yield _FrontierPeak.of(
            found,
            run=view.label,
            family=family,
            threshold=spelled(found),
            gain_ci=interval(resampled[family]),
        )
        yield _Interpolated(
            run=view.label,
            family=family,
            linear=gain(family, "linear"),
            nearest=gain(family, "nearest"),
            floor=gain(family, "floor"),
            ceiling=gain(family, "ceiling"),
        )
    best = max(SCALAR_FAMILIES, key=lambda family: peaks[family].gain)
    yield _Run(
        run=view.label,
        questions=view.table.n_questions,
        full_accuracy=float(setting.correct[:, -1].mean()),
        full_tokens=float(view.table.trace_tokens.mean()),
        learned_peak=peaks["learned"].gain,
        best_scalar=best,
        scalar_peak=peaks[best].gain,
        difference=peaks["learned"].gain - peaks[best].gain,
        difference_ci=interval(resampled["learned"] - resampled[best]),
    )
    budgets = Frontier(view.table.budgets.astype(np.float64), fixed.cost, fixed.accuracy)
    yield from _points(view.label, "fixed budget", budgets, fixed)
    for family in _FAMILIES:
        scores = setting.scores[family]
        thresholds = peak_thresholds(family, scores)
        curve = grid_frontier(scores, setting.costs.thinking, setting.correct, thresholds)
        yield from _points(view.label, family, curve, fixed)


def _points(label: str, name: str, curve: Frontier, fixed: Frontier) -> Iterator[_FrontierPoint]:
    columns = (curve.at, curve.cost, curve.accuracy, gains(curve, fixed))
    for row in zip(*(c.tolist() for c in columns), strict=True):
        yield _FrontierPoint(label, name, *row)


def _served_rows(deploy: DeployProtocol, options: StudyOptions) -> Iterator[_FrontierServed]:
    """Every family over all checkpoints, on fit questions."""
    unsorted = served_budget_frontier(deploy.fit)
    # A longer budget may cost less, where ending naturally is cheaper than being asked.
    order = np.argsort(unsorted.cost, kind="stable")
    fixed = Frontier(unsorted.at[order], unsorted.cost[order], unsorted.accuracy[order])
    for sequence in deploy.sequences(deploy.every_checkpoint):
        family = sequence.scorer.family
        above = gains(sequence_frontier(deploy.fit, sequence), fixed)
        limit = deploy.limit(sequence)
        yield _FrontierServed.of(
            limit,
            run=deploy.label,
            family=family,
            peak_gain=float(above.max()),
            threshold=display_threshold(family, limit.threshold) if limit else None,
            gain=float(above[limit.index]) if limit else None,
        )
