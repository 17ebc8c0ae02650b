"""Study `map`: one row per run, so that regimes can be seen side by side.

Paper, Appendix "Eighteen-setting Compact Summary" with Figure "The 18-setting map", Table
"Trajectory decomposition" and Appendix "Cost and Serving Profiles".  With ``extra["paper"]`` the
paper's 18 settings follow your runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stopadvisor.ground.errors import StudyError
from stopadvisor.paper.map import PAPER_ROWS, PaperRow
from stopadvisor.paper.peaks import find_peak, fixed_budgets, peak_serving
from stopadvisor.probes.trajectories import TYPES, profile, regime, trajectory
from stopadvisor.rules.families import SCALAR_FAMILIES
from stopadvisor.runs.access import View
from stopadvisor.runs.sources import Source
from stopadvisor.studies.runner import compare_at_risk, paper_setting, paper_views
from stopadvisor.studies.tables import Outline, Row, StudyOptions, StudyReport, layout

__all__ = ["OUTLINE", "run"]

_REGIMES = ("kv-fork", "prefix-cache", "black-box")
# fmt: off
_SUMMARY = layout("summary", "Peak gain, and savings at equal risk (alpha = {alpha:g})",
    "scalar peak: the best of four families, as in the study frontier; the paper's rows are at "
    "alpha = 0.15",
    setting="Setting", origin="From", questions="Questions", learned_peak="Learned peak",
    scalar_peak="Scalar peak", delta_peak="Difference",
    delta_saving_pp=("Saving, learned - scalar", "pp"), delta_saving_ci=("95% low", "pp"),
    verdict="Verdict")
_PROFILES = layout("profiles", "Trajectories, and the regime they predict",
    setting="Setting", origin="From", full_accuracy=("Full acc.", "share"),
    mean_think_tokens=("Mean think", "tokens"),
    **{kind: (kind.replace("_", "-"), "share") for kind in TYPES}, regime="Regime")
_SERVING = layout("serving", "Saving of the learned rule at peak gain", setting="Setting",
    origin="From", kv_fork_pct=("kv-fork", "%"), prefix_cache_pct=("prefix-cache", "%"),
    black_box_pct=("black-box", "%"))
# fmt: on
_PAPER = 'Appendix "Eighteen-setting Compact Summary"'
OUTLINE = Outline("map", _PAPER, (_SUMMARY, _PROFILES, _SERVING))


def run(sources: Sequence[Source], options: StudyOptions) -> StudyReport:
    """The compact summary; ``extra["paper"]`` of ``1`` adds the paper's settings."""
    paper = options.extra.get("paper", "0")
    if paper not in ("0", "1"):
        raise StudyError(f"option paper must be 0 or 1, got {paper!r}")
    views = paper_views(sources)
    rows = [row for pair in zip(sources, views, strict=True) for row in _here(*pair, options)]
    rows += [row for one in PAPER_ROWS for row in _papers(one)] if paper == "1" else []
    return OUTLINE.result(rows, options, views)


def _here(source: Source, view: View, options: StudyOptions) -> Iterator[Row]:
    setting, names = paper_setting(view), {"setting": view.label, "origin": "here"}
    table, fixed = view.table, fixed_budgets(setting)
    learned = find_peak("learned", table, setting, fixed).gain
    scalar = max(find_peak(family, table, setting, fixed).gain for family in SCALAR_FAMILIES)
    comparison = compare_at_risk(setting, options)
    spread = comparison.difference
    yield _SUMMARY.row(**names, questions=table.n_questions, learned_peak=learned,
        scalar_peak=scalar, delta_peak=learned - scalar,
        delta_saving_pp=spread.median if spread else None, delta_saving_ci=spread,
        verdict=comparison.verdict,
    )  # fmt: skip
    shape = profile(trajectory(table), rng=np.random.default_rng(source.seed))
    yield _PROFILES.row(**names, full_accuracy=float(table.full_correct.mean()),
        mean_think_tokens=float(table.trace_tokens.mean()), regime=shape.predicted,
        **{kind: shape.shares[kind].share for kind in TYPES},
    )  # fmt: skip
    saved = peak_serving(setting).saving_pct
    yield Row(_SERVING, (*names.values(), *(saved[regime] for regime in _REGIMES)))


def _papers(one: PaperRow) -> Iterator[Row]:
    names = {"setting": f"{one.task} {one.model}", "origin": "paper"}
    yield _SUMMARY.row(**names, questions=None, learned_peak=one.learned_peak,
        scalar_peak=one.scalar_peak, delta_peak=one.delta_peak,
        delta_saving_pp=one.delta_saving_pp, delta_saving_ci=one.ci95, verdict=one.verdict,
    )  # fmt: skip
    shares = one.shares or dict.fromkeys(TYPES)
    kinds = ("early_solved", "unsolved", "oscillating")
    yield _PROFILES.row(**names, full_accuracy=one.full_accuracy, mean_think_tokens=one.mean_think,
        regime=regime(*(one.shares[kind] for kind in kinds)) if one.shares else None, **shares,
    )  # fmt: skip
    if one.saving_pct:
        yield Row(_SERVING, (*names.values(), *(one.saving_pct[name] for name in _REGIMES)))
