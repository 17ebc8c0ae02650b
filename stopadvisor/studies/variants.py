"""Variants of the learned rule side by side: their peak gains.

Takes each variant's probabilities; how they were fitted is for the studies to say.
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
from stopadvisor.studies.tables import Layout, Row, StudyOptions, layout

__all__ = ["variant_peaks", "variant_table"]


def variant_table(title: str, note: str, *, ahead: str) -> Layout:
    """The table of a study of variants; `ahead` is the title of its comparison."""
    return layout(
        "peaks", title, note,
        run="Run", variant="Variant", threshold="Threshold", peak_gain="Peak gain",
        gain_ci="95 % CI", ahead=ahead, ahead_ci="95 % CI", auroc="AUROC",
    )  # fmt: skip


def variant_peaks(
    table: Layout,
    view: View,
    probabilities: Mapping[str, FloatArray],
    reference: str,
    options: StudyOptions,
) -> Iterator[Row]:
    """Peak gain of each variant, and by how much it is ahead of one of them.

    `probabilities` are out of fold, shape (n_questions, n_checkpoints); with the variant
    `reference` the others are compared, in the same resamples.
    """
    thinking, correct = view.table.think_tokens.astype(np.float64), view.table.correct
    fixed = fixed_budget_frontier(thinking, correct, view.table.budgets)
    peaks = {
        name: peak(values, thinking, correct, peak_thresholds("learned", values), fixed)
        for name, values in probabilities.items()
    }
    resampled = resample_gains(
        {name: first_stops(probabilities[name], found.threshold) for name, found in peaks.items()},
        thinking,
        correct,
        n_resamples=options.resamples,
        rng=np.random.default_rng(options.seed),
    )
    for name, found in peaks.items():
        other = name != reference
        yield table.row(
            run=view.label,
            variant=name,
            threshold=found.threshold,
            peak_gain=found.gain,
            gain_ci=interval(resampled[name]),
            ahead=found.gain - peaks[reference].gain if other else None,
            ahead_ci=interval(resampled[name] - resampled[reference]) if other else None,
            auroc=auroc(probabilities[name], correct),
        )
