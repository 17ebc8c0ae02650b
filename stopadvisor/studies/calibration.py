"""Study `calibration`: how far stopping scores can be read as probabilities of being right.

Paper, Appendix "Probability Calibration": ECE and Brier score of the learned rule.  It does not
say how it bins; here it is ten bins of equal width, over all checkpoints, out of fold.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stopadvisor.ground.arrays import BoolArray, FloatArray
from stopadvisor.runs.access import View
from stopadvisor.stats.bootstrap import Interval, block_sums, interval, resample_counts
from stopadvisor.stats.reliability import auroc, reliability
from stopadvisor.studies.runner import paper_setting
from stopadvisor.studies.tables import Outline, Row, StudyOptions, layout

__all__ = ["OUTLINE", "rows"]

_PROBABILITIES = ("learned", "confidence")
"""Scores that are probabilities; the others are ranked only (AUROC)."""

_SCORES = layout(
    "scores", "Calibration of scores", "scores that are no probabilities have an AUROC alone",
    run="Run", protocol="Protocol", score="Score", questions="Questions", checkpoints="Checkpoints",
    right=("Right", "share"), ece="ECE", brier="Brier", brier_ci="Brier 95% low", auroc="AUROC",
)  # fmt: skip
_BINS = layout(
    "bins", "Reliability", "ten bins of equal width",
    run="Run", protocol="Protocol", score="Score", low="From", high="To", count="Checkpoints",
    predicted=("Predicted", "share"), observed=("Right", "share"),
)  # fmt: skip
OUTLINE = Outline("calibration", 'Appendix "Probability Calibration"', (_SCORES, _BINS))


def rows(view: View, options: StudyOptions) -> Iterator[Row | str]:
    """ECE, Brier score, AUROC and reliability bins of every score.

    `alpha`, `delta` and `serving` change nothing here.
    """
    setting = paper_setting(view)
    correct = setting.correct
    for family, values in setting.scores.items():
        names = {"run": view.label, "protocol": "paper", "score": family}
        found = reliability(values, correct) if family in _PROBABILITIES else None
        yield _SCORES.row(
            **names,
            questions=len(correct),
            checkpoints=correct.size,
            right=float(correct.mean()),
            ece=found.ece if found else None,
            brier=found.brier if found else None,
            brier_ci=_brier_interval(values, correct, options) if found else None,
            auroc=auroc(values, correct),
        )
        if found is not None:
            keys = ("low", "high", "count", "predicted", "observed")
            for row in zip(*(getattr(found, key) for key in keys), strict=True):
                yield _BINS.row(**names, **dict(zip(keys, row, strict=True)))
    yield "the Brier interval resamples questions; the scores are not fitted again"


def _brier_interval(values: FloatArray, correct: BoolArray, options: StudyOptions) -> Interval:
    squares = ((values - correct) ** 2).sum(axis=1)
    sums = block_sums(np.column_stack([squares, np.full(len(squares), correct.shape[1])]))
    counts = resample_counts(len(sums), options.resamples, rng=np.random.default_rng(options.seed))
    resampled = counts @ sums.astype(np.float32)
    return interval((resampled[:, 0] / resampled[:, 1]).astype(np.float64))
