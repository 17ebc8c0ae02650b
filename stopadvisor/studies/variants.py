"""Peak gains of variants of the learned rule, side by side.

Takes each variant's probabilities; the studies fit them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from stopadvisor.assessment.frontier import fixed_budget_frontier
from stopadvisor.ground.arrays import FloatArray
from stopadvisor.paper.peaks import peak, peak_thresholds, resample_gains
from stopadvisor.paper.protocol import first_stops
from stopadvisor.runs.access import View
from stopadvisor.stats.bootstrap import interval
from stopadvisor.stats.reliability import auroc
from stopadvisor.studies.tables import Row, StudyOptions, Table, layout

__all__ = ["variant_peaks", "variant_table"]


def variant_table(title: str, note: str, *, ahead: str) -> Table:
    """The table of a study of variants; `ahead` heads the column that compares them."""
    return layout(
        "peaks", title, note,
        run="Run", variant="Variant", threshold="Threshold", peak_gain="Peak gain",
        gain_ci="95 % CI", ahead=ahead, ahead_ci="95 % CI", auroc="AUROC",
    )  # fmt: skip


def variant_peaks(
    table: Table,
    view: View,
    probabilities: Mapping[str, FloatArray],
    reference: str,
    options: StudyOptions,
) -> Iterator[Row]:
    """Peak gain of each variant, and its lead over the variant `reference`, in the same resamples.

    `probabilities` are out of fold, shape (n_questions, n_checkpoints).
    """
    thinking, correct = view.table.think_tokens.astype(np.float64), view.table.correct
    fixed = fixed_budget_frontier(thinking, correct, view.table.budgets)
    peaks = {
        name: peak(values, thinking, correct, peak_thresholds("learned", values), fixed)
        for name, values in probabilities.items()
    }
    resampled = resample_gains(
        {name: first_stops(probabilities[name], best.threshold) for name, best in peaks.items()},
        thinking,
        correct,
        n_resamples=options.resamples,
        rng=np.random.default_rng(options.seed),
    )
    for name, best in peaks.items():
        other = name != reference
        yield table.row(
            run=view.label,
            variant=name,
            threshold=best.threshold,
            peak_gain=best.gain,
            gain_ci=interval(resampled[name]),
            ahead=best.gain - peaks[reference].gain if other else None,
            ahead_ci=interval(resampled[name] - resampled[reference]) if other else None,
            auroc=auroc(probabilities[name], correct),
        )
