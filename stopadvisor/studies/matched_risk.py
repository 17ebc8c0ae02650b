"""Studies of the paper's comparison at equal risk: `alpha-grid` and `split-sensitivity`.

Each probe is charged the paper's cap, one union bound covers all candidates, and thresholds are
chosen on 40 % of the questions and measured on the rest.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stopadvisor.ground.constants import PAPER_ALPHAS, PAPER_SPLIT_SEEDS
from stopadvisor.paper.protocol import match_risk, operating_points, paper_split
from stopadvisor.studies.registry import paper_setting
from stopadvisor.studies.tables import Outline, Row, StudyOptions, View, layout, of_each

__all__ = ["OUTLINES"]

# fmt: off
_ALPHAS = layout("paper", "Matched risk on the test questions of the paper's split",
    "a probe is charged the paper's cap; intervals keep thresholds frozen, as the paper's do, and "
    "tell equal families apart far more often than 5 % of the time",
    run="Run", alpha="Alpha", scalar="Best scalar", learned_risk=("Learned risk", "share"),
    scalar_risk=("Scalar risk", "share"), learned_saving_pct=("Learned saving", "%"),
    scalar_saving_pct=("Scalar saving", "%"), difference_pp=("Difference", "pp"),
    difference_ci=("95 % CI", "pp"), verdict="Verdict")
_SPLITS = layout("summary", "Five 40/60 splits at α = {alpha:g}", "learned ahead: share of the "
    "splits in which it saves more on the test questions; a probe is charged the paper's cap",
    run="Run", rule="Rule", families="Families chosen", mean_risk=("Mean risk", "share"),
    mean_accuracy=("Mean accuracy", "share"), mean_saving_pct=("Mean saving", "%"),
    sd_saving_pct=("SD saving", "%"), learned_ahead=("Learned ahead", "share"),
    mean_difference_pp=("Mean difference", "pp"))
_SEEDS = layout("seeds", "Split by split", run="Run", seed="Seed", scalar="Best scalar",
    learned_feasible="Learned feasible", scalar_feasible="Scalar feasible",
    learned_risk=("Learned risk", "share"), scalar_risk=("Scalar risk", "share"),
    learned_saving_pct=("Learned saving", "%"), scalar_saving_pct=("Scalar saving", "%"))
# fmt: on


def _alpha_grid(view: View, options: StudyOptions) -> Iterator[Row]:
    """Compare learned and scalar rules at every alpha of the paper, and at `options.alpha`."""
    for match in match_risk(
        paper_setting(view),
        *paper_split(view.table.n_questions),
        alphas=sorted({*PAPER_ALPHAS, options.alpha}),
        delta=options.delta,
        n_resamples=options.resamples,
    ):
        learned, scalar, spread = match.learned, match.scalar, match.difference
        yield _ALPHAS.row(run=view.label, alpha=match.alpha, scalar=scalar.family,
            learned_risk=learned.test_risk, scalar_risk=scalar.test_risk,
            learned_saving_pct=learned.total_saving_pct, scalar_saving_pct=scalar.total_saving_pct,
            difference_pp=spread.median if spread else None, difference_ci=spread,
            verdict=match.verdict)  # fmt: skip


def _split_sensitivity(view: View, options: StudyOptions) -> Iterator[Row]:
    """Repeat the comparison under the paper's five seeds."""
    setting, n = paper_setting(view), view.table.n_questions
    pairs = [
        operating_points(setting, *paper_split(n, seed), alpha=options.alpha, delta=options.delta)
        for seed in PAPER_SPLIT_SEEDS
    ]
    ahead = np.array([a.total_saving_pct - b.total_saving_pct for a, b in pairs])
    sides = {"learned": [a for a, _ in pairs], "best scalar": [b for _, b in pairs]}
    for rule, points in sides.items():
        is_learned, savings = rule == "learned", [point.total_saving_pct for point in points]
        yield _SPLITS.row(run=view.label, rule=rule,
            families=", ".join(dict.fromkeys(point.family for point in points)),
            mean_risk=float(np.mean([point.test_risk for point in points])),
            mean_accuracy=float(np.mean([point.test_accuracy for point in points])),
            mean_saving_pct=float(np.mean(savings)), sd_saving_pct=float(np.std(savings, ddof=1)),
            learned_ahead=float((ahead > 0).mean()) if is_learned else None,
            mean_difference_pp=float(ahead.mean()) if is_learned else None)  # fmt: skip
    for seed, (a, b) in zip(PAPER_SPLIT_SEEDS, pairs, strict=True):
        yield _SEEDS.row(run=view.label, seed=seed, scalar=b.family,
            learned_feasible=a.feasible, scalar_feasible=b.feasible,
            learned_risk=a.test_risk, scalar_risk=b.test_risk,
            learned_saving_pct=a.total_saving_pct,
            scalar_saving_pct=b.total_saving_pct)  # fmt: skip


OUTLINES = (
    Outline("alpha-grid", 'Appendix "Primary-Setting α Grid"', (_ALPHAS,), of_each(_alpha_grid)),
    Outline(
        "split-sensitivity",
        'Appendix "Calibration Split Sensitivity"',
        (_SPLITS, _SEEDS),
        of_each(_split_sensitivity),
    ),
)
