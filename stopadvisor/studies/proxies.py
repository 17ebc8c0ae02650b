"""Study `proxies`: imitations of published exits that read answers only, at peak and equal risk.

Paper, Appendix "Extended Baselines" (peak gains) and "Matched-Risk Audit of Output-Level
Recent-Method Proxies": DEER-, EAT- and PUMA-style rules, TERMINATOR-light, and LearnStop-10, whose
two further features leak length.  None of them is exported.
"""

from __future__ import annotations

from collections.abc import Iterator

from stopadvisor.paper.peaks import find_peak, fixed_budgets
from stopadvisor.paper.protocol import PaperRule, PaperSetting
from stopadvisor.paper.proxies import AUDIT_FAMILIES, audit_setting
from stopadvisor.rules.families import SCALAR_FAMILIES
from stopadvisor.runs.access import View
from stopadvisor.stats.bootstrap import Interval, interval
from stopadvisor.studies.runner import compare_at_risk, gains_resampled, paper_setting
from stopadvisor.studies.tables import Outline, Row, StudyOptions, layout

__all__ = ["OUTLINE", "rows"]

# fmt: off
_PEAKS = layout("peaks", "Peak gain over fixed budgets",
    "rules of two conditions show both their numbers; intervals keep thresholds", run="Run",
    family="Rule", threshold="Threshold", peak_gain="Peak gain", gain_ci="95 % CI",
    behind="Learned minus it", behind_ci="95 % CI")
_MATCHED = layout("matched-risk", "At matched risk, α = {alpha:g}",
    "each rule alone is one candidate set of the union bound; a probe is charged the paper's cap",
    run="Run", family="Rule", group="Group", feasible="Feasible", test_risk=("Risk", "share"),
    test_accuracy=("Accuracy", "share"), think_saving_pct=("Thinking saved", "%"),
    total_saving_pct=("Total saved", "%"), difference_pp=("Learned minus it", "pp"),
    difference_ci=("95 % CI", "pp"), verdict="Verdict")
# fmt: on
_PAPER = (
    'Appendices "Extended Baselines" and "Matched-Risk Audit of Output-Level Recent-Method Proxies"'
)
OUTLINE = Outline("proxies", _PAPER, (_PEAKS, _MATCHED))


def rows(view: View, options: StudyOptions) -> Iterator[Row | str]:
    """Peaks, and savings at equal risk, of rules that are compared but never exported."""
    setting = audit_setting(view.table, paper_setting(view))
    fixed, families = fixed_budgets(setting), ("learned", *AUDIT_FAMILIES)
    peaks = {family: find_peak(family, view.table, setting, fixed) for family in families}
    resampled = gains_resampled({f: p.stops for f, p in peaks.items()}, setting, options)
    for family, best in peaks.items():
        other = family != "learned"
        yield _PEAKS.row(run=view.label, family=family, threshold=best.spelled,
            peak_gain=best.gain, gain_ci=interval(resampled[family]),
            behind=peaks["learned"].gain - best.gain if other else None,
            behind_ci=interval(resampled["learned"] - resampled[family]) if other else None,
        )  # fmt: skip
    yield from _matched(view.label, setting, options)
    yield "proxies read forced answers only; they are not the systems they are named after"


def _matched(run: str, setting: PaperSetting, options: StudyOptions) -> Iterator[Row]:
    def row(point: PaperRule, family: str, group: str, spread: Interval | None = None,
            verdict: str | None = None) -> Row:  # fmt: skip
        return _MATCHED.row(run=run, family=family, group=group, feasible=point.feasible,
            test_risk=point.test_risk, test_accuracy=point.test_accuracy,
            think_saving_pct=point.think_saving_pct, total_saving_pct=point.total_saving_pct,
            difference_pp=spread.median if spread else None, difference_ci=spread, verdict=verdict,
        )  # fmt: skip

    best = compare_at_risk(setting, options)
    yield row(best.learned, "learned", "learned")
    groups = dict.fromkeys(SCALAR_FAMILIES, "scalar") | dict.fromkeys(AUDIT_FAMILIES, "proxy")
    for family, group in (groups | {"learned-10": "audit"}).items():
        alone = compare_at_risk(setting, options, rivals=[family])
        verdict = alone.verdict.replace("scalar better", f"{family} better")
        yield row(alone.scalar, family, group, alone.difference, verdict)
    verdict = best.verdict.replace("scalar better", "best scalar better")
    family = f"best scalar ({best.scalar.family})"
    yield row(best.scalar, family, "scalar", best.difference, verdict)
