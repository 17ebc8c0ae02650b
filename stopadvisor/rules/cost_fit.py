"""What requests and tokens cost in seconds, fitted to batches of work that were timed.

    seconds = request · requests + prefilled · uncached + cached · cached + decoded(batch) · decoded

Seconds are wall time while `batch` requests are in flight all along, so that the prices are shares
of a server that is busy.  Knows no engine and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from stopadvisor.ground.errors import CalibrationError

__all__ = ["BatchSeconds", "CostFit", "Measurement", "fit_costs"]


@dataclass(frozen=True)
class Measurement:
    """One timed piece of work."""

    batch: int
    """Requests in flight."""
    requests: int
    uncached: int
    """Tokens read for the first time."""
    cached: int
    """Tokens read from the cache."""
    decoded: int
    seconds: float
    """Wall time of all."""


@dataclass(frozen=True)
class BatchSeconds:
    """What a decoded token costs while `batch` requests are in flight."""

    batch: int
    """Requests in flight."""
    seconds: float
    """Of a decoded token: of a step, divided by the batch."""


@dataclass(frozen=True)
class CostFit:
    """The coefficients, in seconds."""

    request: float
    prefilled: float
    cached: float
    decoded: tuple[BatchSeconds, ...]
    """By batch, the smallest first."""
    misfit: float
    """Root mean square of what the fit misses, as a part of the seconds measured."""


def fit_costs(measurements: Sequence[Measurement]) -> CostFit:
    """Fit the coefficients by least squares of relative errors, none of them below zero.

    Raises
    ------
    CalibrationError
        The measurements do not determine the coefficients, or decoding appears to cost nothing.

    Notes
    -----
    A request of one token takes part in one step, whose cost falls with the batch: that is the
    price of its decoded token.  What is left to the request is what no batch shares.  Where no
    measurement reads cached tokens they are priced as uncached ones.

    References
    ----------
    C. L. Lawson, R. J. Hanson, Solving Least Squares Problems, 1974, chapter 23 (non-negative).
    """
    batches = sorted({m.batch for m in measurements})
    rows = [
        [m.requests, m.uncached, m.cached, *(m.decoded * (m.batch == b) for b in batches)]
        for m in measurements
    ]
    work = np.array(rows, dtype=np.float64).reshape(len(rows), 3 + len(batches))
    seconds = np.array([m.seconds for m in measurements])
    caches = bool(work[:, 2].any())
    if not caches:
        work = np.delete(work, 2, axis=1)
    relative = work / seconds[:, None]
    # Columns of one size, so that the rank does not depend on units.
    scale = np.linalg.norm(relative, axis=0)
    if not batches or (scale == 0).any() or np.linalg.matrix_rank(relative / scale) < scale.size:
        raise CalibrationError(
            f"{len(rows)} measurements are too few to separate the costs of requests, prompt "
            f"tokens and decoded tokens at {batches} in flight"
        )
    found, _ = scipy.optimize.nnls(relative / scale, np.ones(len(rows)))
    prices = found / scale
    misfit = float(np.sqrt(np.mean((relative @ prices - 1) ** 2)))
    request, prefilled, *rest = prices.tolist()
    cached = rest.pop(0) if caches else prefilled
    if min(rest) <= 0:
        raise CalibrationError(
            f"decoding at {batches[int(np.argmin(rest))]} in flight appears to cost "
            "nothing: the timings vary too much; measure again on an idle machine"
        )
    decoded = tuple(BatchSeconds(*pair) for pair in zip(batches, rest, strict=True))
    return CostFit(request, prefilled, cached, decoded, misfit)
