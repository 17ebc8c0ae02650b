"""Study `split-sensitivity`: the matched-risk comparison under five calibration splits.

Paper, Appendix "Calibration Split Sensitivity": five seeds of the 40/60 split at one α; means and
standard deviations over them, and how often the learned rule saves more.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stopadvisor.ground.constants import PAPER_SPLIT_SEEDS
from stopadvisor.paper.protocol import operating_points, paper_split
from stopadvisor.runs.access import View
from stopadvisor.studies.runner import paper_setting
from stopadvisor.studies.tables import Outline, Row, StudyOptions, layout

__all__ = ["OUTLINE", "rows"]

# fmt: off
_SUMMARY = layout("summary", "Five 40/60 splits at α = {alpha:g}", "learned ahead: share of the "
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
OUTLINE = Outline(
    "split-sensitivity", 'Appendix "Calibration Split Sensitivity"', (_SUMMARY, _SEEDS)
)


def rows(view: View, options: StudyOptions) -> Iterator[Row]:
    """Repeat the comparison under the paper's five seeds."""
    setting = paper_setting(view)
    splits = [paper_split(view.table.n_questions, seed) for seed in PAPER_SPLIT_SEEDS]
    pairs = [
        operating_points(setting, *split, alpha=options.alpha, delta=options.delta)
        for split in splits
    ]
    ahead = np.array([a.total_saving_pct - b.total_saving_pct for a, b in pairs])
    comparison = (float((ahead > 0).mean()), float(ahead.mean()))
    sides = {"learned": [a for a, _ in pairs], "best scalar": [b for _, b in pairs]}
    for rule, points in sides.items():
        share, difference = comparison if rule == "learned" else (None, None)
        savings = [point.total_saving_pct for point in points]
        yield _SUMMARY.row(
            run=view.label,
            rule=rule,
            families=", ".join(dict.fromkeys(point.family for point in points)),
            mean_risk=float(np.mean([point.test_risk for point in points])),
            mean_accuracy=float(np.mean([point.test_accuracy for point in points])),
            mean_saving_pct=float(np.mean(savings)),
            sd_saving_pct=float(np.std(savings, ddof=1)),
            learned_ahead=share,
            mean_difference_pp=difference,
        )
    for seed, (a, b) in zip(PAPER_SPLIT_SEEDS, pairs, strict=True):
        yield _SEEDS.row(run=view.label, seed=seed, scalar=b.family,
            learned_feasible=a.feasible, scalar_feasible=b.feasible,
            learned_risk=a.test_risk, scalar_risk=b.test_risk,
            learned_saving_pct=a.total_saving_pct, scalar_saving_pct=b.total_saving_pct,
        )  # fmt: skip
