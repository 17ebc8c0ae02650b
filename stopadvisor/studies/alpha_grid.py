"""Study `alpha-grid`: learned against scalar rules at several risk targets.

Paper, Figure "Matched-risk saving difference" and Appendix "Primary-Setting α Grid": α of 0.05,
0.10, 0.15 and 0.20 under one 40/60 split.  The deploy side makes the whole choice anew on fit
questions for each α, and says how likely calibration is to certify a saving.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stopadvisor.assessment.assess import calibration_size
from stopadvisor.assessment.choice import FitPoint, Settings, choose
from stopadvisor.constants import PAPER_ALPHAS
from stopadvisor.errors import CalibrationError
from stopadvisor.paper.protocol import match_risk, paper_split
from stopadvisor.runs.access import View, basis_remarks
from stopadvisor.runs.sources import Source
from stopadvisor.studies.protocols import (
    interval_cells,
    paper_setting,
    paper_views,
    study_settings,
)
from stopadvisor.studies.study import Cell, Column, StudyOptions, StudyResult, Table

__all__ = ["run"]

_PAPER = (
    Column("run", "Run"),
    Column("alpha", "Alpha"),
    Column("scalar", "Best scalar"),
    Column("learned_risk", "Learned risk", "share"),
    Column("scalar_risk", "Scalar risk", "share"),
    Column("learned_saving_pct", "Learned saving", "%"),
    Column("scalar_saving_pct", "Scalar saving", "%"),
    Column("difference_pp", "Difference", "pp"),
    Column("difference_low", "95 % CI", "pp"),
    Column("difference_high", "high", "pp"),
    Column("verdict", "Verdict"),
)
_DEPLOY = (
    Column("run", "Run"),
    Column("alpha", "Alpha"),
    Column("scalar", "Best scalar"),
    Column("learned_risk", "Learned risk (fit)", "share"),
    Column("scalar_risk", "Scalar risk (fit)", "share"),
    Column("learned_saving_pct", "Learned saving (fit)", "%"),
    Column("scalar_saving_pct", "Scalar saving (fit)", "%"),
    Column("difference_pp", "Difference", "pp"),
    Column("difference_low", "95 % CI", "pp"),
    Column("difference_high", "high", "pp"),
    Column("verdict", "Verdict"),
    Column("chance", "Chance to certify", "chance"),
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Compare the two sides at every α of the paper, and at the one asked for."""
    alphas = sorted({*PAPER_ALPHAS, options.alpha})
    views = paper_views(sources)
    paper = [row for view in views for row in _paper_rows(view, alphas, options)]
    deploy: list[tuple[Cell, ...]] = []
    refused: list[str] = []
    for source, view in zip(sources, views, strict=True):
        for alpha in alphas:
            settings = replace(study_settings(options), alpha=alpha)
            try:
                deploy.append((view.label, alpha, *_deploy_row(source, settings)))
            except CalibrationError as error:
                refused.append(f"{view.label}, α = {alpha:g}: no deploy side: {error}")
    return StudyResult(
        "alpha-grid",
        'Appendix "Primary-Setting α Grid"',
        ("paper", "deploy"),
        (
            Table(
                "paper",
                "Matched risk on the test questions of the paper's split",
                _PAPER,
                tuple(paper),
                "a probe is charged the paper's cap; intervals keep thresholds frozen, as the "
                "paper's do, and tell equal families apart far more often than 5 % of the time",
            ),
            Table(
                "deploy",
                f"Chosen anew on fit questions, {options.serving}",
                _DEPLOY,
                tuple(deploy),
                "net savings out of fold; intervals choose every threshold anew",
            ),
        ),
        (*basis_remarks(views), *refused),
    )


def _paper_rows(
    view: View, alphas: Sequence[float], options: StudyOptions
) -> list[tuple[Cell, ...]]:
    setting = paper_setting(view)
    calibration, test = paper_split(view.table.n_questions)
    found = match_risk(
        setting,
        calibration,
        test,
        alphas=alphas,
        delta=options.delta,
        n_resamples=options.resamples,
    )
    return [
        (
            view.label,
            row.alpha,
            row.scalar.family,
            row.learned.test_risk,
            row.scalar.test_risk,
            row.learned.total_saving_pct,
            row.scalar.total_saving_pct,
            *interval_cells(row.difference),
            row.verdict,
        )
        for row in found
    ]


def _deploy_row(source: Source, settings: Settings) -> tuple[Cell, ...]:
    choice = choose(source.part("fit"), calibration_size(source.part("calibration")), settings)
    learned, scalar, spread = choice.learned, choice.scalar, choice.delta_saving_pp
    if not (learned and learned.feasible and scalar and scalar.feasible):
        spread = None
    return (
        scalar.family if scalar else None,
        _risk(learned),
        _risk(scalar),
        _saving(learned),
        _saving(scalar),
        *interval_cells(spread),
        choice.verdict,
        choice.chance,
    )


def _risk(point: FitPoint | None) -> float | None:
    return point.fit_risk if point else None


def _saving(point: FitPoint | None) -> float | None:
    return point.fit_total_saving_pct if point else None
