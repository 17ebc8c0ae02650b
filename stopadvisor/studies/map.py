"""Study `map`: one row a run, so that regimes can be seen side by side.

Paper, Appendix "Eighteen-setting Compact Summary" with Figure "The 18-setting map", Table
"Trajectory decomposition" and Appendix "Cost and Serving Profiles".  With ``extra["paper"]`` its 18
settings stand below one's own.  The deploy protocol says of each run what `assess` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from stopadvisor.assessment.assess import FitAssessment, assess
from stopadvisor.errors import CalibrationError, StudyError
from stopadvisor.paper.map import PAPER_ROWS, PaperRow
from stopadvisor.paper.peaks import find_peak, fixed_budgets
from stopadvisor.paper.protocol import PaperSetting, peak_serving
from stopadvisor.probes.trajectories import TYPES, profile, regime, trajectory
from stopadvisor.rules.families import SCALAR_FAMILIES
from stopadvisor.runs.access import View, basis_remarks
from stopadvisor.runs.sources import Source
from stopadvisor.studies.protocols import (
    compare_at_risk,
    paper_setting,
    paper_views,
    study_settings,
)
from stopadvisor.studies.rows import Ends, Outline, Row, column, ends, part
from stopadvisor.studies.study import StudyOptions, StudyResult

__all__ = ["OUTLINE", "run"]

_PAPER_ALPHA = 0.15
"""Of the paper's summary."""


class _MapNames(Row):
    setting: str = column("Setting")
    origin: str = column("From")


class _MapSummary(
    _MapNames,
    table="summary",
    title="Peak gain, and savings at equal risk (alpha = {alpha:g})",
    note="scalar peak: the best of four families, as in the study frontier",
):
    questions: int | None = column("Questions")
    learned_peak: float = column("Learned peak")
    scalar_peak: float = column("Scalar peak")
    delta_peak: float = column("Difference")
    delta_saving_pp: float | None = column("Saving, learned - scalar", "pp")
    delta_saving_ci: Ends = ends("95% low", "pp", of="ci95")
    verdict: str = column("Verdict")


class _TypeShares(Row):
    """Of the questions, by type of trajectory."""

    early_solved: float = column("early-solved", "share")
    beneficial: float = column("beneficial", "share")
    harmful: float = column("harmful", "share")
    unsolved: float = column("unsolved", "share")
    oscillating: float = column("oscillating", "share")


class _ProfileRow(_MapNames, table="profiles", title="Trajectories, and the regime they predict"):
    full_accuracy: float = column("Full acc.", "share")
    mean_think_tokens: float = column("Mean think", "tokens", of="mean_think")
    shares: _TypeShares | None = part(_TypeShares)
    regime: str | None = column("Regime")


class _MapServing(_MapNames, table="serving", title="Saving of the learned rule at peak gain"):
    kv_fork_pct: float = column("kv-fork", "%")
    prefix_cache_pct: float = column("prefix-cache", "%")
    black_box_pct: float = column("black-box", "%")


class _Advice(Row, table="advice", title="What `assess` advises, {serving}"):
    setting: str = column("Setting")
    policy: str = column("Advice", of="recommendation.policy")
    family: str | None = column("Rule", of="recommendation.family")
    checkpoints: int | None = column("Checkpoints")
    fit_risk: float | None = column("Risk (fit)", "share")
    fit_saving_pct: float | None = column("Net saving (fit)", "%")
    chance: float = column("Probability to certify", "chance", of="choice.probability")
    evidence: str = column("At equal risk", of="choice.verdict")


OUTLINE = Outline(
    "map",
    'Appendix "Eighteen-setting Compact Summary"',
    (_MapSummary, _ProfileRow, _MapServing, _Advice),
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """The compact summary; ``extra["paper"]`` of ``1`` adds the paper's settings."""
    paper = options.extra.get("paper", "0")
    if paper not in ("0", "1"):
        raise StudyError(f"option paper must be 0 or 1, got {paper!r}")
    views = paper_views(sources)
    found: list[Row | str] = []
    for source, view in zip(sources, views, strict=True):
        found += _run_rows(source, view, options)
    if paper == "1":
        for row in PAPER_ROWS:
            found += _paper_rows(row)
    found += _advice_rows(sources, views, options)
    if paper == "1" and options.alpha != _PAPER_ALPHA:
        found.append(f"the paper's summary is at alpha = {_PAPER_ALPHA:g}, these runs' is not")
    return OUTLINE.result(found, options, basis_remarks(views))


def _run_rows(source: Source, view: View, options: StudyOptions) -> Iterator[Row]:
    setting = paper_setting(view)
    yield _summary(view, setting, options)
    found = profile(trajectory(view.table), rng=np.random.default_rng(source.seed))
    yield _ProfileRow(
        setting=view.label,
        origin="here",
        full_accuracy=float(view.table.full_correct.mean()),
        mean_think_tokens=float(view.table.trace_tokens.mean()),
        shares=_TypeShares(**{name: found.shares[name].share for name in TYPES}),
        regime=found.predicted,
    )
    yield _serving(view.label, "here", peak_serving(setting).saving_pct)


def _serving(setting: str, origin: str, saved: Mapping[str, float]) -> _MapServing:
    return _MapServing(setting, origin, saved["kv-fork"], saved["prefix-cache"], saved["black-box"])


def _summary(view: View, setting: PaperSetting, options: StudyOptions) -> _MapSummary:
    fixed = fixed_budgets(setting)
    learned = find_peak("learned", view.table, setting, fixed).gain
    scalar = max(find_peak(f, view.table, setting, fixed).gain for f in SCALAR_FAMILIES)
    found = compare_at_risk(setting, options)
    return _MapSummary(
        setting=view.label,
        origin="here",
        questions=view.table.n_questions,
        learned_peak=learned,
        scalar_peak=scalar,
        delta_peak=learned - scalar,
        delta_saving_pp=found.difference.median if found.difference else None,
        delta_saving_ci=found.difference,
        verdict=found.verdict,
    )


def _paper_rows(row: PaperRow) -> Iterator[Row]:
    """One setting of the paper."""
    name, shares = f"{row.task} {row.model}", row.shares
    yield _MapSummary.of(row, setting=name, origin="paper", questions=None)
    kinds = ("early_solved", "unsolved", "oscillating")
    yield _ProfileRow.of(
        row,
        setting=name,
        origin="paper",
        shares=_TypeShares(**{kind: shares[kind] for kind in TYPES}) if shares else None,
        regime=regime(*(shares[kind] for kind in kinds)) if shares else None,
    )
    if row.saving_pct:
        yield _serving(name, "paper", row.saving_pct)


def _advice_rows(
    sources: Sequence[Source], views: Sequence[View], options: StudyOptions
) -> Iterator[_Advice | str]:
    settings = study_settings(options, boosted=True)
    for source, view in zip(sources, views, strict=True):
        try:
            yield _advice(view.label, assess(source, settings))
        except CalibrationError as error:
            yield f"{view.label}: no advice: {error}"


def _advice(label: str, found: FitAssessment) -> _Advice:
    advice = found.recommendation
    point = None if advice.family is None else found.choice.advised_point
    return _Advice.of(
        found,
        setting=label,
        checkpoints=None if advice.schedule is None else len(advice.schedule),
        fit_risk=point.fit_risk if point else None,
        fit_saving_pct=point.fit_total_saving_pct if point else None,
    )
