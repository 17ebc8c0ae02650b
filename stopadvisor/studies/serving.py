"""Study `serving`: the learned rule under every serving regime, and where its saving ends.

Paper, Section "Deployment Cost" and Appendix "Cost and Serving Profiles": the learned rule at its
threshold of peak gain, in capped tokens.  To the paper's table it adds the weight of a reread token
at which the saving is gone.  `assess` prices a rule for your own stack.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stopadvisor.ground.constants import PAPER_CACHED_WEIGHT
from stopadvisor.paper.peaks import peak_serving
from stopadvisor.paper.protocol import first_stops
from stopadvisor.runs.access import View
from stopadvisor.studies.runner import paper_setting
from stopadvisor.studies.tables import Outline, Row, StudyOptions, layout

__all__ = ["OUTLINE", "rows"]

_PAPER = layout(
    "paper",
    "The learned rule at peak gain, capped tokens",
    "a token read again weighs 0.1 from a cache, 1 in a prompt; kv-fork reads none",
    run="Run", regime="Serving", threshold="Threshold", peak_gain="Peak gain",
    saving_pct=("Saving", "%"), reread_weight="Weight read again",
    break_even_weight="Ends at weight",
)  # fmt: skip
OUTLINE = Outline(
    "serving", 'Section "Deployment Cost" and Appendix "Cost and Serving Profiles"', (_PAPER,)
)


def rows(view: View, options: StudyOptions) -> Iterator[Row]:
    """Savings by serving regime."""
    setting = paper_setting(view)
    at_peak = peak_serving(setting)
    stops = first_stops(setting.scores["learned"], at_peak.threshold)
    budgets = view.table.budgets.astype(np.float64)
    stopped = np.take_along_axis(setting.costs.total, stops[:, None], axis=1)
    left = float(setting.costs.full_total.mean() - stopped.mean())
    # Tokens read again by checkpoint j: from a prefix cache the paper counts B_j for each probe so
    # far, at a black box the prefix of each.
    read = {
        "kv-fork": (None, np.zeros_like(budgets)),
        "prefix-cache": (PAPER_CACHED_WEIGHT, budgets * np.arange(1, budgets.size + 1)),
        "black-box": (1.0, np.cumsum(budgets)),
    }
    for regime, (weight, again) in read.items():
        tokens = float(again[stops].mean())
        yield _PAPER.row(
            run=view.label,
            regime=regime,
            threshold=at_peak.threshold,
            peak_gain=at_peak.peak_gain,
            saving_pct=at_peak.saving_pct[regime],
            reread_weight=weight,
            break_even_weight=left / tokens if tokens > 0 and left > 0 else None,
        )
