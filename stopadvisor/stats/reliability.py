"""How good a score is as a probability: reliability bins, ECE, Brier score and AUROC."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from stopadvisor.ground.arrays import BoolArray, FloatArray
from stopadvisor.ground.errors import CalibrationError

__all__ = ["Reliability", "auroc", "reliability"]

_BINS = 10


@dataclass(frozen=True)
class Reliability:
    """Predicted probability against observed frequency, in bins of equal width; none is empty."""

    low: tuple[float, ...]
    """Lower edge of each bin."""
    high: tuple[float, ...]
    """Upper edge of each bin."""
    count: tuple[int, ...]
    """Predictions in each bin."""
    predicted: tuple[float, ...]
    """Mean prediction."""
    observed: tuple[float, ...]
    """Observed frequency."""
    ece: float
    """Expected calibration error: mean of |predicted - observed|, weighted by `count`."""
    brier: float
    """Mean squared difference of prediction and outcome."""


def reliability(probability: FloatArray, outcome: BoolArray) -> Reliability:
    """Compare predictions in [0, 1] with outcomes of the same shape.

    Raises CalibrationError if there is no prediction, or one outside [0, 1].

    References
    ----------
    Brier (1950); Naeini, Cooper and Hauskrecht (2015), "Obtaining well calibrated probabilities
    using Bayesian binning".  Paper, Appendix, calibration diagnostics.
    """
    values, hits = np.ravel(probability).astype(np.float64), np.ravel(outcome).astype(np.float64)
    if not values.size or values.min() < 0 or values.max() > 1 or np.isnan(values).any():
        raise CalibrationError(
            f"reliability needs probabilities in 0 … 1, got {values.size} from "
            f"{values.min() if values.size else None} to {values.max() if values.size else None}"
        )
    edges = np.linspace(0.0, 1.0, _BINS + 1)
    index = np.minimum((values * _BINS).astype(np.int64), _BINS - 1)
    count = np.bincount(index, minlength=_BINS)
    used = np.flatnonzero(count)
    predicted = np.bincount(index, values, _BINS)[used] / count[used]
    observed = np.bincount(index, hits, _BINS)[used] / count[used]
    weight = count[used] / values.size
    return Reliability(
        tuple(edges[used].tolist()),
        tuple(edges[used + 1].tolist()),
        tuple(count[used].tolist()),
        tuple(predicted.tolist()),
        tuple(observed.tolist()),
        float((weight * np.abs(predicted - observed)).sum()),
        float(((values - hits) ** 2).mean()),
    )


def auroc(score: FloatArray, outcome: BoolArray) -> float | None:
    """Share of (right, wrong) pairs in which the right answer scores higher; ties count half.

    That is Mann-Whitney's U divided by the number of pairs.  None if there is only one class.
    """
    values, hits = np.ravel(score), np.ravel(outcome)
    n_right = int(hits.sum())
    n_wrong = hits.size - n_right
    if n_right == 0 or n_wrong == 0:
        return None
    u = scipy.stats.rankdata(values)[hits].sum() - n_right * (n_right + 1) / 2
    return float(u / (n_right * n_wrong))
