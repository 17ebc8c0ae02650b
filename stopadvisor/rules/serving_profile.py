"""The serving profile: seconds of requests and tokens, measured where they are served.

    seconds = request · requests + prefilled · uncached + cached · cached + decoded(batch) · decoded

Seconds are wall time while `batch` requests are in flight all along, so that the prices are shares
of a server that is busy.  They are fitted to batches of work that were timed.  The file is JSON;
its prices become the weights of the serving costs.  Measures nothing itself and knows no engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy

from stopadvisor.ground.errors import CalibrationError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.rules.costs import SECONDS, Weights

__all__ = [
    "SERVING_PROFILE",
    "BatchSeconds",
    "CostFit",
    "Measurement",
    "PerTokenSeconds",
    "ServingProfile",
    "fit_costs",
    "read_serving_profile",
]


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


SERVING_PROFILE = "serving-profile.json"
"""In a model's folder: what it costs where it is served."""


@dataclass(frozen=True)
class PerTokenSeconds:
    """Seconds that one token of each kind takes."""

    prefilled: float
    """Read for the first time."""
    cached: float
    """Read from the cache."""
    decoded: float
    """Generated."""


@dataclass(frozen=True, kw_only=True)
class ServingProfile:
    """What `profile-serving` measured."""

    SCHEMA: ClassVar[int] = 2

    model: str
    """What was measured."""
    engine: str
    """What ran it."""
    device: str
    """Where: a device, or the server's address."""
    per_token_seconds: PerTokenSeconds
    """Seconds of a token of each kind."""
    settings: Mapping[str, Any]
    """How it was measured; nothing is computed from it."""
    per_request_seconds: float = 0.0
    """Seconds of a request, whatever it reads and decodes."""
    round_trip_seconds: float = 0.0
    """From sending a request whose prompt is cached to its first token, on an idle server."""
    at_batch: int
    """Requests in flight for which a decoded token is priced."""
    decoded_by_batch: tuple[BatchSeconds, ...] = ()
    """Decoding, by requests in flight."""
    misfit: float
    """Relative error of the fit, root mean square."""

    @classmethod
    def of_fit(cls, fit: CostFit, **fields: Any) -> ServingProfile:
        """Price decoded tokens at the largest batch that was measured."""
        at = fit.decoded[-1]
        return cls(
            per_token_seconds=PerTokenSeconds(fit.prefilled, fit.cached, at.seconds),
            per_request_seconds=fit.request,
            at_batch=at.batch,
            decoded_by_batch=fit.decoded,
            misfit=fit.misfit,
            **fields,
        )

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
        if not isinstance(data, Mapping):
            raise CalibrationError(f"{where}: expected a JSON object, got {data!r}")
        if data.get("schema") != cls.SCHEMA:
            raise CalibrationError(
                f"{where}: field 'schema': expected {cls.SCHEMA}, got {data.get('schema')!r}"
            )
        names: dict[str, Any] = {
            name: _text(data, name, where) for name in ("model", "engine", "device")
        }
        seconds = data.get("per_token_seconds")
        if not isinstance(seconds, Mapping):
            raise CalibrationError(
                f"{where}: field 'per_token_seconds': expected an object, got {seconds!r}"
            )
        rates = {
            name: _number(seconds, name, f"{where}: per_token_seconds")
            for name in ("prefilled", "cached", "decoded")
        }
        if rates["decoded"] <= 0:
            raise CalibrationError(
                f"{where}: per_token_seconds: field 'decoded': expected seconds > 0, got "
                f"{rates['decoded']!r}"
            )
        batches = data.get("decoded_by_batch")
        if not isinstance(batches, list):
            raise CalibrationError(
                f"{where}: field 'decoded_by_batch': expected a list, got {batches!r}"
            )
        return cls(
            **names,
            per_token_seconds=PerTokenSeconds(**rates),
            settings=data.get("settings") or {},
            per_request_seconds=_number(data, "per_request_seconds", where),
            round_trip_seconds=_number(data, "round_trip_seconds", where),
            at_batch=_count(data, "at_batch", where),
            decoded_by_batch=tuple(
                _batch(row, f"{where}: decoded_by_batch[{i}]") for i, row in enumerate(batches)
            ),
            misfit=_number(data, "misfit", where),
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


def _batch(data: Any, where: str) -> BatchSeconds:
    if not isinstance(data, Mapping):
        raise CalibrationError(f"{where}: expected an object, got {data!r}")
    return BatchSeconds(_count(data, "batch", where), _number(data, "seconds", where))


def _count(data: Mapping[str, Any], name: str, where: str) -> int:
    value = _number(data, name, where)
    if value < 1 or not value.is_integer():
        raise CalibrationError(
            f"{where}: field {name!r}: expected a whole number >= 1, got {value!r}"
        )
    return int(value)


def _text(data: Mapping[str, Any], name: str, where: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise CalibrationError(f"{where}: field {name!r}: expected a text, got {value!r}")
    return value


def _number(data: Mapping[str, Any], name: str, where: str) -> float:
    value = data.get(name)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and number and math.isfinite(value) and value >= 0:
        return float(value)
    raise CalibrationError(f"{where}: field {name!r}: expected a finite number >= 0, got {value!r}")
