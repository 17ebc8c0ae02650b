"""Variants of the learned rule side by side: their peaks, and what they save on fit questions.

Takes each variant's probabilities; how they were fitted is for the studies to say.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stopadvisor.arrays import FloatArray
from stopadvisor.assessment.frontier import fixed_budget_frontier
from stopadvisor.assessment.sequences import ThresholdSequence
from stopadvisor.paper.gain_bootstrap import resample_gains
from stopadvisor.paper.peaks import peak, peak_thresholds
from stopadvisor.paper.protocol import first_stops
from stopadvisor.runs.access import View
from stopadvisor.stats.bootstrap import interval
from stopadvisor.stats.reliability import auroc
from stopadvisor.studies.protocols import FitSide
from stopadvisor.studies.study import Cell, Column, StudyOptions

__all__ = ["PEAKS", "SERVED", "peak_rows", "served_row"]

PEAKS = (
    Column("run", "Run"),
    Column("variant", "Variant"),
    Column("threshold", "Threshold"),
    Column("peak_gain", "Peak gain"),
    Column("gain_low", "95 % CI"),
    Column("gain_high", "high"),
    Column("ahead", "Ahead of the first"),
    Column("ahead_low", "95 % CI"),
    Column("ahead_high", "high"),
    Column("auroc", "AUROC"),
)
"""Columns of `peak_rows`; the title of ``ahead`` is for the study to change."""

SERVED = (
    Column("run", "Run"),
    Column("variant", "Variant"),
    Column("auroc", "AUROC (fit)"),
    Column("fit_risk", "Risk (fit)", "share"),
    Column("fit_saving_pct", "Net saving (fit)", "%"),
)


def peak_rows(
    view: View, chances: Mapping[str, FloatArray], reference: str, options: StudyOptions
) -> list[tuple[Cell, ...]]:
    """Peak gain of each variant, and by how much it is ahead of one of them.

    Parameters
    ----------
    view : View
    chances : mapping of str to ndarray of float, shape (n_questions, n_checkpoints)
        Out of fold.
    reference : str
        The variant with which the others are compared, in the same resamples.
    options : StudyOptions
    """
    table = view.table
    thinking = table.think_tokens.astype(np.float64)
    fixed = fixed_budget_frontier(thinking, table.correct, table.budgets)
    peaks = {
        name: peak(values, thinking, table.correct, peak_thresholds("learned", values), fixed)
        for name, values in chances.items()
    }
    resampled = resample_gains(
        {name: first_stops(chances[name], found.threshold) for name, found in peaks.items()},
        thinking,
        table.correct,
        n_resamples=options.resamples,
        rng=np.random.default_rng(options.seed),
    )
    rows: list[tuple[Cell, ...]] = []
    for name, found in peaks.items():
        spread = interval(resampled[name])
        ahead: tuple[Cell, ...] = (None, None, None)
        if name != reference:
            apart = interval(resampled[name] - resampled[reference])
            ahead = (found.gain - peaks[reference].gain, apart.low, apart.high)
        rows.append(
            (
                view.label,
                name,
                found.threshold,
                found.gain,
                spread.low,
                spread.high,
                *ahead,
                auroc(chances[name], table.correct),
            )
        )
    return rows


def served_row(
    side: FitSide, name: str, scores: FloatArray, chain: ThresholdSequence
) -> tuple[Cell, ...]:
    """What a variant over all checkpoints saves at the risk that calibration could certify.

    Parameters
    ----------
    side : FitSide
    name : str
    scores : ndarray of float, shape (n_questions, n_checkpoints)
        Of the fit questions, out of fold.
    chain : ThresholdSequence
        Made of them.
    """
    table = side.fit.table
    live = ~table.ended
    position = chain.position(side.limit)
    found: tuple[Cell, ...] = (None, None)
    if position >= 0:
        found = (float(chain.losses[position]) / table.n_questions, side.saving(chain))
    return (side.label, name, auroc(scores[live], table.stop_correct[live]), *found)
