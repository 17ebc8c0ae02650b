"""Study `map`: one row a run, so that regimes can be seen side by side.

Paper, Appendix "Eighteen-setting Compact Summary" with Figure "The 18-setting map", Table
"Trajectory decomposition" and Appendix "Cost and Serving Profiles".  With ``extra["paper"]`` its 18
settings stand below one's own.  The deploy side is what `assess` says of each run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stopadvisor.assessment.assess import Assessment, assess
from stopadvisor.errors import CalibrationError, StudyError
from stopadvisor.paper.map import PAPER_ROWS, PaperRow
from stopadvisor.paper.peaks import find_peak, fixed_budgets
from stopadvisor.paper.protocol import PaperSetting, match_risk, paper_split, peak_serving
from stopadvisor.probes.trajectories import TYPES, profile, regime, trajectory
from stopadvisor.rules.families import SCALAR_FAMILIES
from stopadvisor.runs.access import View, basis_remarks
from stopadvisor.runs.sources import Source
from stopadvisor.studies.protocols import interval_cells, paper_setting, paper_views, study_settings
from stopadvisor.studies.study import Cell, Column, StudyOptions, StudyResult, Table

__all__ = ["run"]

_REGIMES = ("kv-fork", "prefix-cache", "black-box")
_PAPER_ALPHA = 0.15
"""Of the paper's summary."""

_SETTING = (Column("setting", "Setting"), Column("origin", "From"))
_SUMMARY = (
    *_SETTING,
    Column("questions", "Questions"),
    Column("learned_peak", "Learned peak"),
    Column("scalar_peak", "Scalar peak"),
    Column("delta_peak", "Difference"),
    Column("delta_saving_pp", "Saving, learned - scalar", "pp"),
    Column("delta_saving_low", "95% low", "pp"),
    Column("delta_saving_high", "high", "pp"),
    Column("verdict", "Verdict"),
)
_PROFILE = (
    *_SETTING,
    Column("full_accuracy", "Full acc.", "share"),
    Column("mean_think_tokens", "Mean think", "tokens"),
    *(Column(name, name.replace("_", "-"), "share") for name in TYPES),
    Column("regime", "Regime"),
)
_SERVING = (
    *_SETTING,
    *(Column(f"{name.replace('-', '_')}_pct", name, "%") for name in _REGIMES),
)
_ADVICE = (
    Column("setting", "Setting"),
    Column("policy", "Advice"),
    Column("family", "Rule"),
    Column("checkpoints", "Checkpoints"),
    Column("fit_risk", "Risk (fit)", "share"),
    Column("fit_saving_pct", "Net saving (fit)", "%"),
    Column("chance", "Chance to certify", "chance"),
    Column("evidence", "At equal risk"),
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """The compact summary.

    Parameters
    ----------
    sources : sequence of Source
    options : StudyOptions
        ``extra["paper"]``: ``1`` adds the paper's settings.

    Raises
    ------
    StopAdvisorError
        Too few questions, labels of one class only, or another value of the option.
    """
    asked = options.extra.get("paper", "0")
    if asked not in ("0", "1"):
        raise StudyError(f"option paper must be 0 or 1, got {asked!r}")
    views = paper_views(sources)
    summary: list[tuple[Cell, ...]] = []
    profiles: list[tuple[Cell, ...]] = []
    serving: list[tuple[Cell, ...]] = []
    for source, view in zip(sources, views, strict=True):
        setting = paper_setting(view)
        summary.append(_summary_row(view, setting, options))
        profiles.append(_profile_row(source, view))
        saving = peak_serving(setting).saving_pct
        serving.append((view.label, "here", *(saving[name] for name in _REGIMES)))
    if asked == "1":
        summary.extend(map(_paper_summary, PAPER_ROWS))
        profiles.extend(_paper_profile(row) for row in PAPER_ROWS)
        serving.extend(_paper_serving(row) for row in PAPER_ROWS if row.saving_pct)
    advice, reasons = _advice(sources, views, options)
    if asked == "1" and options.alpha != _PAPER_ALPHA:
        reasons.append(f"the paper's summary is at alpha = {_PAPER_ALPHA:g}, these runs' is not")
    return StudyResult(
        "map",
        'Appendix "Eighteen-setting Compact Summary"',
        ("paper", "deploy"),
        (
            Table(
                "summary",
                f"Peak gain, and savings at equal risk (alpha = {options.alpha:g})",
                _SUMMARY,
                tuple(summary),
                "scalar peak: the best of four families, as in the study frontier",
            ),
            Table(
                "profiles", "Trajectories, and the regime they predict", _PROFILE, tuple(profiles)
            ),
            Table("serving", "Saving of the learned rule at peak gain", _SERVING, tuple(serving)),
            Table("advice", f"What `assess` advises, {options.serving}", _ADVICE, tuple(advice)),
        ),
        (*basis_remarks(views), *reasons),
    )


def _summary_row(view: View, setting: PaperSetting, options: StudyOptions) -> tuple[Cell, ...]:
    fixed = fixed_budgets(setting)
    learned = find_peak("learned", view.table, setting, fixed).gain
    scalar = max(find_peak(f, view.table, setting, fixed).gain for f in SCALAR_FAMILIES)
    (row,) = match_risk(
        setting,
        *paper_split(view.table.n_questions),
        alphas=[options.alpha],
        delta=options.delta,
        n_resamples=options.resamples,
    )
    return (
        view.label,
        "here",
        view.table.n_questions,
        learned,
        scalar,
        learned - scalar,
        *interval_cells(row.difference),
        row.verdict,
    )


def _profile_row(source: Source, view: View) -> tuple[Cell, ...]:
    found = profile(trajectory(view.table), rng=np.random.default_rng(source.seed))
    return (
        view.label,
        "here",
        float(view.table.full_correct.mean()),
        float(view.table.trace_tokens.mean()),
        *(found.shares[name].share for name in TYPES),
        found.predicted,
    )


def _advice(
    sources: Sequence[Source], views: Sequence[View], options: StudyOptions
) -> tuple[list[tuple[Cell, ...]], list[str]]:
    settings = study_settings(options, boosted=True)
    rows: list[tuple[Cell, ...]] = []
    reasons: list[str] = []
    for source, view in zip(sources, views, strict=True):
        try:
            rows.append(_advice_row(view.label, assess(source, settings)))
        except CalibrationError as error:
            reasons.append(f"{view.label}: no advice: {error}")
    return rows, reasons


def _advice_row(label: str, found: Assessment) -> tuple[Cell, ...]:
    advice, choice = found.recommendation, found.choice
    assert choice is not None  # the deploy protocol's
    points = [p for p in (choice.learned, choice.scalar) if p and p.family == advice.family]
    point = points[0] if points else None
    return (
        label,
        advice.policy,
        advice.family,
        None if advice.schedule is None else len(advice.schedule),
        None if point is None else point.fit_risk,
        None if point is None else point.fit_total_saving_pct,
        choice.chance,
        choice.verdict,
    )


# --- The paper's settings -------------------------------------------------------------------------


def _paper_names(row: PaperRow) -> tuple[str, str]:
    return f"{row.task} {row.model}", "paper"


def _paper_summary(row: PaperRow) -> tuple[Cell, ...]:
    return (
        *_paper_names(row),
        None,
        row.learned_peak,
        row.scalar_peak,
        row.delta_peak,
        row.delta_saving_pp,
        *row.ci95,
        row.verdict,
    )


def _paper_profile(row: PaperRow) -> tuple[Cell, ...]:
    known: tuple[Cell, ...] = (*_paper_names(row), row.full_accuracy, row.mean_think)
    if row.shares is None:
        return (*known, *([None] * (len(TYPES) + 1)))
    predicted = regime(
        row.shares["early_solved"], row.shares["unsolved"], row.shares["oscillating"]
    )
    return (*known, *(row.shares[name] for name in TYPES), predicted)


def _paper_serving(row: PaperRow) -> tuple[Cell, ...]:
    assert row.saving_pct is not None  # filtered by the caller
    return (*_paper_names(row), *(row.saving_pct[name] for name in _REGIMES))
