"""Study `alpha-grid`: learned against scalar rules at several risk targets.

Paper, Figure "Matched-risk saving difference" and Appendix "Primary-Setting α Grid": α of 0.05,
0.10, 0.15 and 0.20, and `--alpha`, on one 40/60 split.
"""

from __future__ import annotations

from collections.abc import Iterator

from stopadvisor.ground.constants import PAPER_ALPHAS
from stopadvisor.paper.protocol import match_risk, paper_split
from stopadvisor.runs.access import View
from stopadvisor.studies.runner import paper_setting
from stopadvisor.studies.tables import Outline, Row, StudyOptions, layout

__all__ = ["OUTLINE", "rows"]

_PAPER = layout(
    "paper",
    "Matched risk on the test questions of the paper's split",
    "a probe is charged the paper's cap; intervals keep thresholds frozen, as the paper's do, and "
    "tell equal families apart far more often than 5 % of the time",
    run="Run", alpha="Alpha", scalar="Best scalar", learned_risk=("Learned risk", "share"),
    scalar_risk=("Scalar risk", "share"), learned_saving_pct=("Learned saving", "%"),
    scalar_saving_pct=("Scalar saving", "%"), difference_pp=("Difference", "pp"),
    difference_ci=("95 % CI", "pp"), verdict="Verdict",
)  # fmt: skip
OUTLINE = Outline("alpha-grid", 'Appendix "Primary-Setting α Grid"', (_PAPER,))


def rows(view: View, options: StudyOptions) -> Iterator[Row]:
    """Compare learned and scalar rules at every α of the paper, and at `options.alpha`."""
    for comparison in match_risk(
        paper_setting(view),
        *paper_split(view.table.n_questions),
        alphas=sorted({*PAPER_ALPHAS, options.alpha}),
        delta=options.delta,
        n_resamples=options.resamples,
    ):
        yield _PAPER.row(
            run=view.label,
            alpha=comparison.alpha,
            scalar=comparison.scalar.family,
            learned_risk=comparison.learned.test_risk,
            scalar_risk=comparison.scalar.test_risk,
            learned_saving_pct=comparison.learned.total_saving_pct,
            scalar_saving_pct=comparison.scalar.total_saving_pct,
            difference_pp=comparison.difference.median if comparison.difference else None,
            difference_ci=comparison.difference,
            verdict=comparison.verdict,
        )
