"""Study `proxies`: imitations of published exits that read answers only, at peak and equal risk.

Paper, Appendix "Extended Baselines" (peak gains) and "Matched-Risk Audit of Output-Level
Recent-Method Proxies": DEER-, EAT- and PUMA-style rules, TERMINATOR-light, and LearnStop-10, whose
two further features leak length.  None of them is exported, so there is no deploy protocol here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stopadvisor.paper.peaks import find_peak, fixed_budgets
from stopadvisor.paper.protocol import MatchedRisk, PaperSetting
from stopadvisor.paper.proxies import AUDIT_FAMILIES, audit_setting
from stopadvisor.rules.families import SCALAR_FAMILIES
from stopadvisor.runs.access import View, basis_remarks
from stopadvisor.runs.sources import Source
from stopadvisor.stats.bootstrap import interval
from stopadvisor.studies.frontier import RunPeak, peak_intervals, spelled
from stopadvisor.studies.protocols import compare_at_risk, paper_setting, paper_views
from stopadvisor.studies.rows import Ends, Outline, Row, RunRow, column, ends
from stopadvisor.studies.study import StudyOptions, StudyResult

__all__ = ["OUTLINE", "run"]

_BEST = "best scalar"


class _ProxiesPeak(
    RunPeak,
    table="peaks",
    title="Peak gain over fixed budgets",
    note="rules of two conditions show both their numbers; intervals keep thresholds",
):
    behind: float | None = column("Learned minus it")
    behind_ci: Ends = ends("95 % CI")


class _Matched(
    RunRow,
    table="matched-risk",
    title="At matched risk, α = {alpha:g}",
    note="each rule alone is one candidate set of the union bound; a probe is charged the paper's "
    "cap",
):
    family: str = column("Rule")
    group: str = column("Group")
    feasible: bool = column("Feasible")
    test_risk: float = column("Risk", "share")
    test_accuracy: float = column("Accuracy", "share")
    think_saving_pct: float = column("Thinking saved", "%")
    total_saving_pct: float = column("Total saved", "%")
    difference_pp: float | None = column("Learned minus it", "pp")
    difference_ci: Ends = ends("95 % CI", "pp")
    verdict: str | None = column("Verdict")


OUTLINE = Outline(
    "proxies",
    'Appendices "Extended Baselines" and "Matched-Risk Audit of Output-Level Recent-Method '
    'Proxies"',
    (_ProxiesPeak, _Matched),
    protocols=("paper",),
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """Peaks and matched-risk savings of rules that are compared but never exported."""
    views = paper_views(sources)
    found: list[Row] = []
    for view in views:
        setting = audit_setting(view.table, paper_setting(view))
        found += _peaks(view, setting, options)
        found += _matched(view, setting, options)
    remark = "proxies read forced answers only; they are not the systems they are named after"
    return OUTLINE.result(found, options, (remark, *basis_remarks(views)))


def _peaks(view: View, setting: PaperSetting, options: StudyOptions) -> Iterator[_ProxiesPeak]:
    fixed = fixed_budgets(setting)
    families = ("learned", *AUDIT_FAMILIES)
    peaks = {family: find_peak(family, view.table, setting, fixed) for family in families}
    resampled = peak_intervals(peaks, setting, options)
    for family, found in peaks.items():
        other = family != "learned"
        yield _ProxiesPeak.of(
            found,
            run=view.label,
            family=family,
            threshold=spelled(found),
            gain_ci=interval(resampled[family]),
            behind=peaks["learned"].gain - found.gain if other else None,
            behind_ci=interval(resampled["learned"] - resampled[family]) if other else None,
        )


def _matched(view: View, setting: PaperSetting, options: StudyOptions) -> Iterator[_Matched]:
    groups = dict.fromkeys(SCALAR_FAMILIES, "scalar")
    groups |= dict.fromkeys(AUDIT_FAMILIES, "proxy") | {"learned-10": "audit"}

    def compared(found: MatchedRisk, family: str, group: str, name: str) -> _Matched:
        return _Matched.of(
            found.scalar,
            run=view.label,
            family=family,
            group=group,
            difference_pp=found.difference.median if found.difference else None,
            difference_ci=found.difference,
            verdict=found.verdict.replace("scalar better", f"{name} better"),
        )

    best = compare_at_risk(setting, options)
    alone = {"difference_pp": None, "difference_ci": None, "verdict": None}
    yield _Matched.of(best.learned, run=view.label, group="learned", **alone)
    for family, group in groups.items():
        found = compare_at_risk(setting, options, rivals=[family])
        yield compared(found, family, group, family)
    yield compared(best, f"{_BEST} ({best.scalar.family})", "scalar", _BEST)
