"""Study `proxies`: output-level imitations of published exits, at their peak and at matched risk.

Paper, Appendix "Extended Baselines" (peak gains) and "Matched-Risk Audit of Output-Level
Recent-Method Proxies": DEER-, EAT- and PUMA-style rules, TERMINATOR-light, and LearnStop-10, whose
two further features leak length.  None of them is exported, so there is no deploy side.
"""

from __future__ import annotations

from collections.abc import Sequence

from stopadvisor.paper.peaks import find_peak, fixed_budgets
from stopadvisor.paper.protocol import (
    MatchedRisk,
    OperatingPoint,
    PaperSetting,
    match_risk,
    paper_split,
)
from stopadvisor.paper.proxies import AUDIT_FAMILIES, audit_setting
from stopadvisor.rules.families import SCALAR_FAMILIES
from stopadvisor.runs.access import View, basis_remarks
from stopadvisor.runs.sources import Source
from stopadvisor.stats.bootstrap import interval
from stopadvisor.studies.frontier import peak_intervals, spelled
from stopadvisor.studies.protocols import interval_cells, paper_setting, paper_views
from stopadvisor.studies.study import Cell, Column, StudyOptions, StudyResult, Table

__all__ = ["run"]

_BEST = "best scalar"

_PEAKS = (
    Column("run", "Run"),
    Column("family", "Rule"),
    Column("threshold", "Threshold"),
    Column("peak_gain", "Peak gain"),
    Column("gain_low", "95 % CI"),
    Column("gain_high", "high"),
    Column("behind", "Learned minus it"),
    Column("behind_low", "95 % CI"),
    Column("behind_high", "high"),
)
_MATCHED = (
    Column("run", "Run"),
    Column("family", "Rule"),
    Column("group", "Group"),
    Column("feasible", "Feasible"),
    Column("test_risk", "Risk", "share"),
    Column("test_accuracy", "Accuracy", "share"),
    Column("think_saving_pct", "Thinking saved", "%"),
    Column("total_saving_pct", "Total saved", "%"),
    Column("difference_pp", "Learned minus it", "pp"),
    Column("difference_low", "95 % CI", "pp"),
    Column("difference_high", "high", "pp"),
    Column("verdict", "Verdict"),
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Peaks and matched-risk savings of the audit-only rules."""
    views = paper_views(sources)
    peaks: list[tuple[Cell, ...]] = []
    matched: list[tuple[Cell, ...]] = []
    for view in views:
        setting = audit_setting(view.table, paper_setting(view))
        peaks += _peak_rows(view, setting, options)
        matched += _matched_rows(view, setting, options)
    return StudyResult(
        "proxies",
        'Appendices "Extended Baselines" and "Matched-Risk Audit of Output-Level Recent-Method '
        'Proxies"',
        ("paper",),
        (
            Table(
                "peaks",
                "Peak gain over fixed budgets",
                _PEAKS,
                tuple(peaks),
                "rules of two conditions show both their numbers; intervals keep thresholds",
            ),
            Table(
                "matched-risk",
                f"At matched risk, α = {options.alpha:g}",
                _MATCHED,
                tuple(matched),
                "each rule alone is one candidate set of the union bound; a probe is charged the "
                "paper's cap",
            ),
        ),
        (
            "proxies read forced answers only; they are not the systems they are named after",
            *basis_remarks(views),
        ),
    )


def _peak_rows(view: View, setting: PaperSetting, options: StudyOptions) -> list[tuple[Cell, ...]]:
    fixed = fixed_budgets(setting)
    families = ("learned", *AUDIT_FAMILIES)
    peaks = {family: find_peak(family, view.table, setting, fixed) for family in families}
    resampled = peak_intervals(peaks, setting, options)
    rows: list[tuple[Cell, ...]] = []
    for family, found in peaks.items():
        spread = interval(resampled[family])
        head = (view.label, family, spelled(found), found.gain, spread.low, spread.high)
        if family == "learned":
            rows.append((*head, None, None, None))
            continue
        apart = interval(resampled["learned"] - resampled[family])
        rows.append((*head, peaks["learned"].gain - found.gain, apart.low, apart.high))
    return rows


def _matched_rows(
    view: View, setting: PaperSetting, options: StudyOptions
) -> list[tuple[Cell, ...]]:
    calibration, test = paper_split(view.table.n_questions)
    groups = dict.fromkeys(SCALAR_FAMILIES, "scalar")
    groups |= dict.fromkeys(AUDIT_FAMILIES, "proxy") | {"learned-10": "audit"}

    def against(*rivals: str) -> MatchedRisk:
        return match_risk(
            setting,
            calibration,
            test,
            alphas=[options.alpha],
            delta=options.delta,
            rivals=rivals,
            n_resamples=options.resamples,
        )[0]

    best = against(*SCALAR_FAMILIES)
    rows: list[tuple[Cell, ...]] = [
        (view.label, "learned", "learned", *_figures(best.learned), None, None, None, None)
    ]
    for family, group in groups.items():
        rows.append((view.label, family, group, *_compared(against(family), family)))
    name = f"{_BEST} ({best.scalar.family})"
    rows.append((view.label, name, "scalar", *_compared(best, _BEST)))
    return rows


def _compared(found: MatchedRisk, name: str) -> tuple[Cell, ...]:
    verdict = found.verdict.replace("scalar better", f"{name} better")
    return (*_figures(found.scalar), *interval_cells(found.difference), verdict)


def _figures(point: OperatingPoint) -> tuple[Cell, ...]:
    return (
        point.feasible,
        point.test_risk,
        point.test_accuracy,
        point.think_saving_pct,
        point.total_saving_pct,
    )
