"""Study `calibration`: how far stopping scores can be read as probabilities of being right.

Paper, Appendix "Probability Calibration": ECE and Brier score of the learned stopper.  It does
not say how it bins; here ten bins of equal width.  The paper's side takes all checkpoints, out of
fold; the deploy side fit questions and live checkpoints alone, as they occur online.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from stopadvisor.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.assessment.sequences import FitData, score_out_of_fold
from stopadvisor.errors import CalibrationError
from stopadvisor.probes.grouping import group_numbers
from stopadvisor.rules.families import SCALAR_FAMILIES
from stopadvisor.runs.access import basis_remarks
from stopadvisor.runs.sources import Source
from stopadvisor.stats.bootstrap import block_sums, interval, resample_counts
from stopadvisor.stats.reliability import Reliability, auroc, reliability
from stopadvisor.studies.protocols import fit_data, paper_setting, paper_views, study_settings
from stopadvisor.studies.study import Cell, Column, StudyOptions, StudyResult, Table

__all__ = ["run"]

_CHANCES = ("learned", "learned-boosted", "confidence")
"""Scores that are probabilities; the others are ranked only (AUROC)."""

_SCORES = (
    Column("run", "Run"),
    Column("protocol", "Protocol"),
    Column("score", "Score"),
    Column("questions", "Questions"),
    Column("checkpoints", "Checkpoints"),
    Column("right", "Right", "share"),
    Column("ece", "ECE"),
    Column("brier", "Brier"),
    Column("brier_low", "Brier 95% low"),
    Column("brier_high", "high"),
    Column("auroc", "AUROC"),
)
_BINS = (
    Column("run", "Run"),
    Column("protocol", "Protocol"),
    Column("score", "Score"),
    Column("low", "From"),
    Column("high", "To"),
    Column("count", "Checkpoints"),
    Column("predicted", "Predicted", "share"),
    Column("observed", "Right", "share"),
)


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """ECE, Brier score, AUROC and reliability bins of every score.

    Parameters
    ----------
    sources : sequence of Source
    options : StudyOptions
        `alpha`, `delta` and `serving` change nothing here.

    Raises
    ------
    StopAdvisorError
        Too few questions, or labels of one class only.
    """
    scores: list[tuple[Cell, ...]] = []
    bins: list[tuple[Cell, ...]] = []
    reasons: list[str] = []
    views = paper_views(sources)
    for source, view in zip(sources, views, strict=True):
        setting = paper_setting(view)
        everywhere = np.ones(setting.correct.shape, dtype=bool)
        for family, values in setting.scores.items():
            _add(
                (view.label, "paper", family),
                values,
                setting.correct,
                everywhere,
                np.arange(view.table.n_questions),
                options,
                scores,
                bins,
            )
        try:
            fit = fit_data(source, study_settings(options))
        except CalibrationError as error:
            reasons.append(f"{view.label}: no deploy side: {error}")
            continue
        for family in ("learned", "learned-boosted", *SCALAR_FAMILIES):
            _add_fit_side(fit, view.label, family, options, scores, bins)
    note = "scores that are no probabilities have an AUROC alone"
    return StudyResult(
        "calibration",
        'Appendix "Probability Calibration"',
        ("paper", "deploy"),
        (
            Table("scores", "Calibration of scores", _SCORES, tuple(scores), note),
            Table("bins", "Reliability", _BINS, tuple(bins), "ten bins of equal width"),
        ),
        (
            *basis_remarks(views),
            *reasons,
            "the Brier interval resamples questions; the scores are not fitted anew",
        ),
    )


def _add_fit_side(
    fit: FitData,
    label: str,
    family: str,
    options: StudyOptions,
    scores: list[tuple[Cell, ...]],
    bins: list[tuple[Cell, ...]],
) -> None:
    table = fit.table
    found = score_out_of_fold(fit, family, tuple(range(table.n_checkpoints)))
    if found is None:
        return
    values = found[1]
    if family.startswith("learned"):
        values = expit(values)
    elif family == "confidence":
        values = np.exp(values)
    names = (label, "deploy", family)
    _add(
        names, values, table.stop_correct, ~table.ended, group_numbers(table), options, scores, bins
    )


def _add(
    names: tuple[str, str, str],
    values: FloatArray,
    correct: BoolArray,
    used: BoolArray,
    units: IntArray,
    options: StudyOptions,
    scores: list[tuple[Cell, ...]],
    bins: list[tuple[Cell, ...]],
) -> None:
    """Append one score's row, and its bins where it is a probability.

    `units` says which rows are resampled together: traces of one question are.
    """
    n, rows = np.unique(units[used.any(axis=1)]).size, int(used.sum())
    right = float(correct[used].mean())
    rank = auroc(values[used], correct[used])
    if names[2] not in _CHANCES:
        scores.append((*names, n, rows, right, None, None, None, None, rank))
        return
    found: Reliability = reliability(values[used], correct[used])
    squares = np.where(used, (values - correct) ** 2, 0.0).sum(axis=1)
    sums = block_sums(np.column_stack([squares, used.sum(axis=1)]), units)
    rng = np.random.default_rng(options.seed)
    counts = resample_counts(len(sums), options.resamples, rng=rng)
    drawn = counts @ sums.astype(np.float32)
    spread = interval((drawn[:, 0] / drawn[:, 1]).astype(np.float64))
    scores.append((*names, n, rows, right, found.ece, found.brier, spread.low, spread.high, rank))
    columns = (found.low, found.high, found.count, found.predicted, found.observed)
    bins.extend((*names, *row) for row in zip(*(c.tolist() for c in columns), strict=True))
