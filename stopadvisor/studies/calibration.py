"""Study `calibration`: how far stopping scores can be read as probabilities of being right.

Paper, Appendix "Probability Calibration": ECE and Brier score of the learned rule.  It does not
say how it bins; here ten bins of equal width.  The paper's protocol takes all checkpoints, out of
fold; the deploy protocol takes fit questions, at the checkpoints where a trace has not ended yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stopadvisor.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.assessment.sequences import FitData
from stopadvisor.errors import CalibrationError
from stopadvisor.probes.grouping import group_numbers
from stopadvisor.rules.families import SCALAR_FAMILIES
from stopadvisor.rules.schedules import GridSchedule, grid_positions
from stopadvisor.runs.access import View, basis_remarks
from stopadvisor.runs.sources import Source
from stopadvisor.stats.bootstrap import Interval, block_sums, interval, resample_counts
from stopadvisor.stats.reliability import auroc, reliability
from stopadvisor.studies.protocols import (
    fit_data,
    fit_scores,
    paper_setting,
    paper_views,
    study_settings,
)
from stopadvisor.studies.rows import Ends, Outline, Row, RunRow, column, ends
from stopadvisor.studies.study import StudyOptions, StudyResult

__all__ = ["OUTLINE", "run"]

_PROBABILITIES = ("learned", "learned-boosted", "confidence")
"""Scores that are probabilities; the others are ranked only (AUROC)."""


class _CalibrationNames(RunRow):
    protocol: str = column("Protocol")
    score: str = column("Score")


class _Score(
    _CalibrationNames,
    table="scores",
    title="Calibration of scores",
    note="scores that are no probabilities have an AUROC alone",
):
    questions: int = column("Questions")
    checkpoints: int = column("Checkpoints")
    right: float = column("Right", "share")
    ece: float | None = column("ECE")
    brier: float | None = column("Brier")
    brier_ci: Ends = ends("Brier 95% low")
    auroc: float | None = column("AUROC")


class _Bin(_CalibrationNames, table="bins", title="Reliability", note="ten bins of equal width"):
    low: float = column("From")
    high: float = column("To")
    count: int = column("Checkpoints")
    predicted: float = column("Predicted", "share")
    observed: float = column("Right", "share")


OUTLINE = Outline("calibration", 'Appendix "Probability Calibration"', (_Score, _Bin))


def run(sources: Sequence[Source], options: StudyOptions) -> StudyResult:
    """ECE, Brier score, AUROC and reliability bins of every score.

    `alpha`, `delta` and `serving` change nothing here.
    """
    views = paper_views(sources)
    found: list[Row | str] = []
    for source, view in zip(sources, views, strict=True):
        found += _paper_rows(view, options)
        try:
            fit = fit_data(source, study_settings(options))
        except CalibrationError as error:
            found.append(f"{view.label}: no rows of the deploy protocol: {error}")
        else:
            found += _deploy_rows(fit, view.label, options)
    found.append("the Brier interval resamples questions; the scores are not fitted anew")
    return OUTLINE.result(found, options, basis_remarks(views))


def _paper_rows(view: View, options: StudyOptions) -> Iterator[Row]:
    setting = paper_setting(view)
    everywhere = np.ones(setting.correct.shape, dtype=bool)
    units = np.arange(view.table.n_questions)
    for family, values in setting.scores.items():
        names = (view.label, "paper", family)
        yield from _rows(names, values, setting.correct, everywhere, units, options)


def _deploy_rows(fit: FitData, label: str, options: StudyOptions) -> Iterator[Row]:
    table = fit.table
    for family in ("learned", "learned-boosted", *SCALAR_FAMILIES):
        values = fit_scores(fit, family, GridSchedule(grid_positions(table)))
        if values is not None:
            names = (label, "deploy", family)
            units = group_numbers(table)
            yield from _rows(names, values, table.stop_correct, ~table.ended, units, options)


def _rows(
    names: tuple[str, str, str],
    values: FloatArray,
    correct: BoolArray,
    used: BoolArray,
    units: IntArray,
    options: StudyOptions,
) -> Iterator[Row]:
    """One score, and its bins where it is a probability.

    `units` says which rows are resampled together: traces of one question are.
    """
    run, protocol, score = names
    found = reliability(values[used], correct[used]) if score in _PROBABILITIES else None
    yield _Score.of(
        found,
        run=run,
        protocol=protocol,
        score=score,
        questions=np.unique(units[used.any(axis=1)]).size,
        checkpoints=int(used.sum()),
        right=float(correct[used].mean()),
        brier_ci=_brier_interval(values, correct, used, units, options) if found else None,
        auroc=auroc(values[used], correct[used]),
    )
    if found is not None:
        bins = (found.low, found.high, found.count, found.predicted, found.observed)
        for row in zip(*(column.tolist() for column in bins), strict=True):
            yield _Bin(*names, *row)


def _brier_interval(
    values: FloatArray, correct: BoolArray, used: BoolArray, units: IntArray, options: StudyOptions
) -> Interval:
    squares = np.where(used, (values - correct) ** 2, 0.0).sum(axis=1)
    sums = block_sums(np.column_stack([squares, used.sum(axis=1)]), units)
    rng = np.random.default_rng(options.seed)
    counts = resample_counts(len(sums), options.resamples, rng=rng)
    resampled = counts @ sums.astype(np.float32)
    return interval((resampled[:, 0] / resampled[:, 1]).astype(np.float64))
