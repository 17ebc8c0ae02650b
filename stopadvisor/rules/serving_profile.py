"""The serving profile: seconds per request and token, fitted to timed batches of work.

    seconds = request · requests + prefilled · uncached + cached · cached + decoded(batch) · decoded

Seconds are wall time while `batch` requests are always in flight, so a price is a share of a busy
server.  The prices become the weights of the serving costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import scipy

from stopadvisor.ground.errors import CalibrationError
from stopadvisor.ground.fields import Condition, Name, Positive, parse_as
from stopadvisor.ground.json_text import read_object
from stopadvisor.rules.costs import SECONDS, Weights

__all__ = [
    "SERVING_PROFILE", "BatchSeconds", "Measurement", "PerTokenSeconds", "ServingProfile",
    "fit_costs", "read_serving_profile",
]  # fmt: skip

_Seconds = Annotated[float, Condition("a finite number >= 0", lambda value: value >= 0)]
_InFlight = Annotated[int, Condition("a whole number >= 1", lambda value: value >= 1)]


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
    """Wall time of all requests together."""


@dataclass(frozen=True)
class BatchSeconds:
    """Seconds per decoded token while `batch` requests are in flight."""

    batch: _InFlight
    """Requests in flight."""
    seconds: _Seconds
    """Seconds of a step, divided by the batch."""


SERVING_PROFILE = "serving-profile.json"
"""File name of the profile in a model's folder."""

_AGAIN = "measure again, with this version's profile-serving"


@dataclass(frozen=True)
class PerTokenSeconds:
    """Seconds per token of each kind."""

    prefilled: _Seconds
    """A prompt token that is not cached."""
    cached: _Seconds
    """A prompt token read from the cache."""
    decoded: Positive
    """A decoded token."""


@dataclass(frozen=True, kw_only=True)
class ServingProfile:
    """What `profile-serving` measured."""

    SCHEMA: ClassVar[int] = 2

    model: Name
    """The model."""
    engine: Name
    """The engine that ran it."""
    device: Name
    """The device, or the server's address."""
    per_token_seconds: PerTokenSeconds
    """Seconds per token of each kind."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """How it was measured; for information only."""
    per_request_seconds: _Seconds = 0.0
    """Seconds per request, whatever it reads and decodes."""
    round_trip_seconds: _Seconds = 0.0
    """From sending a request whose prompt is cached to its first token, on an idle server."""
    at_batch: _InFlight
    """Requests in flight for which a decoded token is priced."""
    decoded_by_batch: tuple[BatchSeconds, ...] = ()
    """Seconds per decoded token, by requests in flight."""
    misfit: _Seconds
    """Root mean square of the fit's relative errors."""

    @property
    def weights(self) -> Weights:
        """Prices for the serving costs, in seconds."""
        seconds = self.per_token_seconds
        # In a step every request in flight decodes one token.
        step = self.at_batch * seconds.decoded
        return Weights(
            seconds.prefilled,
            seconds.cached,
            seconds.decoded,
            SECONDS,
            request=self.per_request_seconds,
            round_trip=self.round_trip_seconds / step,
            model=f"{self.model} ({self.engine} on {self.device})",
            in_flight=self.at_batch,
        )


def fit_costs(measurements: Sequence[Measurement], **fields: Any) -> ServingProfile:
    """Fit the coefficients by non-negative least squares of relative errors.

    `fields` are the profile's other fields.  The price of a decoded token is that of the largest
    batch measured.

    Raises
    ------
    CalibrationError
        The measurements do not determine the coefficients, or decoding appears to cost nothing.

    Notes
    -----
    Even a request of one token takes part in a step, and its share of the step falls with the
    batch: that is the price of its decoded token.  The price of a request is the part that no batch
    shares.  Unless some work read cached tokens, they are priced like uncached ones.

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
    # Scale the columns so that the rank does not depend on units.
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
    return ServingProfile(
        per_token_seconds=PerTokenSeconds(prefilled, cached, rest[-1]),
        per_request_seconds=request,
        at_batch=batches[-1],
        decoded_by_batch=decoded,
        misfit=misfit,
        **fields,
    )


def read_serving_profile(path: Path) -> ServingProfile:
    """Read the file that `profile-serving` wrote; CalibrationError names the file and field."""
    data = read_object(path, CalibrationError)
    schema = data.pop("schema", None)
    if schema != ServingProfile.SCHEMA:
        raise CalibrationError(
            f"{path}: field 'schema': expected {ServingProfile.SCHEMA}, got {schema!r}; {_AGAIN}"
        )
    try:
        return parse_as(CalibrationError, ServingProfile, data, path)
    except CalibrationError as error:
        raise CalibrationError(f"{error}; {_AGAIN}") from error
