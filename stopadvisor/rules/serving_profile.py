"""The serving profile: seconds of requests and tokens, measured where they are served.

    seconds = request · requests + prefilled · uncached + cached · cached + decoded(batch) · decoded

Seconds are wall time while `batch` requests are in flight all along, so that the prices are shares
of a server that is busy.  They are fitted to batches of work that were timed.  The file is JSON;
its prices become the weights of the serving costs.  Measures nothing itself and knows no engine.
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
from stopadvisor.ground.json_text import parse_json
from stopadvisor.rules.costs import SECONDS, Weights

__all__ = [
    "SERVING_PROFILE",
    "BatchSeconds",
    "Measurement",
    "PerTokenSeconds",
    "ServingProfile",
    "fit_costs",
    "read_serving_profile",
]

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
    """Wall time of all."""


@dataclass(frozen=True)
class BatchSeconds:
    """What a decoded token costs while `batch` requests are in flight."""

    batch: _InFlight
    """Requests in flight."""
    seconds: _Seconds
    """Of a decoded token: of a step, divided by the batch."""


SERVING_PROFILE = "serving-profile.json"
"""In a model's folder: what it costs where it is served."""


@dataclass(frozen=True)
class PerTokenSeconds:
    """Seconds that one token of each kind takes."""

    prefilled: _Seconds
    """Read for the first time."""
    cached: _Seconds
    """Read from the cache."""
    decoded: Positive
    """Generated."""


@dataclass(frozen=True, kw_only=True)
class ServingProfile:
    """What `profile-serving` measured."""

    SCHEMA: ClassVar[int] = 2

    model: Name
    """What was measured."""
    engine: Name
    """What ran it."""
    device: Name
    """Where: a device, or the server's address."""
    per_token_seconds: PerTokenSeconds
    """Seconds of a token of each kind."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """How it was measured; nothing is computed from it."""
    per_request_seconds: _Seconds = 0.0
    """Seconds of a request, whatever it reads and decodes."""
    round_trip_seconds: _Seconds = 0.0
    """From sending a request whose prompt is cached to its first token, on an idle server."""
    at_batch: _InFlight
    """Requests in flight for which a decoded token is priced."""
    decoded_by_batch: tuple[BatchSeconds, ...] = ()
    """Decoding, by requests in flight."""
    misfit: _Seconds
    """Root mean square of what the fit misses, as a part of the seconds measured."""

    @property
    def weights(self) -> Weights:
        """Prices of the serving costs, in seconds."""
        seconds = self.per_token_seconds
        # All that are in flight decode a token a step.
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

    @classmethod
    def from_dict(cls, data: Any, where: str) -> ServingProfile:
        """Read a profile; `where` names it in the error message.

        Raises
        ------
        CalibrationError
            A field is missing or out of its range.
        """
        schema = data.get("schema") if isinstance(data, Mapping) else None
        if schema != cls.SCHEMA:
            raise CalibrationError(
                f"{where}: field 'schema': expected {cls.SCHEMA}, got {schema!r}"
            )
        held = {name: value for name, value in data.items() if name != "schema"}
        return parse_as(CalibrationError, cls, held, where)


def fit_costs(measurements: Sequence[Measurement], **fields: Any) -> ServingProfile:
    """Fit the coefficients by least squares of relative errors, none of them below zero.

    `fields` are those of the profile that are not fitted.  Decoded tokens are priced at the largest
    batch that was measured.

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
    return ServingProfile(
        per_token_seconds=PerTokenSeconds(prefilled, cached, rest[-1]),
        per_request_seconds=request,
        at_batch=batches[-1],
        decoded_by_batch=decoded,
        misfit=misfit,
        **fields,
    )


def read_serving_profile(path: Path) -> ServingProfile:
    """Read a file that `profile-serving` wrote.

    Raises
    ------
    CalibrationError
        The file cannot be read, or is no such profile; the message names file and field.
    """
    try:
        data = parse_json(path.read_bytes())
    except OSError as error:
        raise CalibrationError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise CalibrationError(f"{path}: not JSON: {error}") from error
    return ServingProfile.from_dict(data, str(path))
