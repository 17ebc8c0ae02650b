"""Study `calibration-size`: how many calibration questions certify what.

The paper has no such table; it says that with 80 calibration questions or fewer the concentration
term alone approaches the risk target (Section "A Three-Regime Map", third regime).  This study
tests that statement: calibration sets of each size are drawn from the paper's 40 %, and its 60 %
measure what they certify.  `plan` answers the same question for the deploy protocol.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from stopadvisor.paper.protocol import operating_points, paper_split
from stopadvisor.runs.access import View
from stopadvisor.studies.runner import paper_setting
from stopadvisor.studies.tables import Outline, Row, StudyOptions, layout

__all__ = ["OUTLINE", "rows"]

_SIZES = (25, 50, 80, 100, 150, 200, 300, 400, 800, 1600)
_DRAWS = 8
"""Calibration sets of each size; the full one is drawn once."""

_DRAWN = layout(
    "drawn",
    "Certified by the paper's bound, alpha = {alpha:g}",
    "means over sets drawn from the calibration questions; nothing certified counts as never "
    "stopping; slack is what Hoeffding's bound adds to the risk seen",
    run="Run", side="Rule", questions="Labels", certified=("Certified", "share"),
    saving_pct=("Saves", "%"), saving_min_pct=("Least", "%"), saving_max_pct=("Most", "%"),
    test_risk=("Test risk", "share"), slack="Slack", draws="Sets", candidates="Candidates",
)  # fmt: skip
OUTLINE = Outline("calibration-size", 'Section "A Three-Regime Map" (n_cal <= 80)', (_DRAWN,))


def rows(view: View, options: StudyOptions) -> Iterator[Row]:
    """Certified savings by number of calibration questions."""
    setting, (pool, test) = paper_setting(view), paper_split(view.table.n_questions)
    rng = np.random.default_rng(options.seed)
    for size in [*(s for s in _SIZES if s < pool.size), pool.size]:
        draws = 1 if size == pool.size else _DRAWS
        drawn = [rng.choice(pool, size=size, replace=False) for _ in range(draws)]
        pairs = [
            operating_points(setting, chosen, test, alpha=options.alpha, delta=options.delta)
            for chosen in drawn
        ]
        for side, points in zip(("learned", "scalar"), zip(*pairs, strict=True), strict=True):
            savings = [p.total_saving_pct for p in points]
            slack = [math.sqrt(math.log(p.candidates / options.delta) / (2 * size)) for p in points]
            yield _DRAWN.row(
                run=view.label,
                side=side,
                questions=size,
                certified=float(np.mean([p.feasible for p in points])),
                saving_pct=float(np.mean(savings)),
                saving_min_pct=min(savings),
                saving_max_pct=max(savings),
                test_risk=float(np.mean([p.test_risk for p in points])),
                slack=float(np.mean(slack)),
                draws=draws,
                candidates=float(np.mean([p.candidates for p in points])),
            )
