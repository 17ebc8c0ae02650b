"""The serving profile: seconds per token and per question, measured once on the deployer's machine.

Its file is JSON; what stands in it becomes the weights of the serving costs.  Measures nothing
itself and knows no engine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stopadvisor.errors import CalibrationError
from stopadvisor.rules.costs import Weights

__all__ = ["SCHEMA", "PerTokenSeconds", "ProfileRow", "ServingProfile", "read_serving_profile"]

SCHEMA = 1


@dataclass(frozen=True)
class PerTokenSeconds:
    """Seconds that one token of each kind takes."""

    prefilled: float
    cached: float
    decoded: float


@dataclass(frozen=True)
class ProfileRow:
    """One measured combination of batch size and number of checkpoints."""

    batch: int
    checkpoints: int
    """0: full thinking without any probe."""
    seconds_per_question: float
    """Thinking to its own end, visible answer and all probes included; wall time of a batch
    divided by its questions."""
    std: float | None
    """Over batches; None with a single one."""
    peak_memory_gb: float


@dataclass(frozen=True)
class ServingProfile:
    """What `profile-serving` measured."""

    model: str
    engine: str
    device: str
    per_token_seconds: PerTokenSeconds
    rows: tuple[ProfileRow, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """How it was measured; nothing is computed from it."""

    @property
    def weights(self) -> Weights:
        """Prices of the serving costs, in seconds."""
        seconds = self.per_token_seconds
        return Weights(seconds.prefilled, seconds.cached, seconds.decoded, "seconds")

    def to_dict(self) -> dict[str, Any]:
        """What the file holds."""
        return {"schema": SCHEMA, **asdict(self), "rows": [asdict(row) for row in self.rows]}

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
        if data.get("schema") != SCHEMA:
            raise CalibrationError(
                f"{where}: field 'schema': expected {SCHEMA}, got {data.get('schema')!r}"
            )
        names = {name: _text(data, name, where) for name in ("model", "engine", "device")}
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
        rows = data.get("rows")
        if not isinstance(rows, list):
            raise CalibrationError(f"{where}: field 'rows': expected a list, got {rows!r}")
        return cls(
            **names,
            per_token_seconds=PerTokenSeconds(**rates),
            rows=tuple(_row(row, f"{where}: rows[{i}]") for i, row in enumerate(rows)),
            settings=data.get("settings") or {},
        )


def read_serving_profile(path: Path) -> ServingProfile:
    """Read a file that `profile-serving` wrote.

    Raises
    ------
    CalibrationError
        The file cannot be read, or is no such profile; the message names file and field.
    """
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise CalibrationError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise CalibrationError(f"{path}: not JSON: {error}") from error
    return ServingProfile.from_dict(data, str(path))


def _row(data: Any, where: str) -> ProfileRow:
    if not isinstance(data, Mapping):
        raise CalibrationError(f"{where}: expected an object, got {data!r}")
    counts = {name: _number(data, name, where) for name in ("batch", "checkpoints")}
    for name, least in (("batch", 1), ("checkpoints", 0)):
        if counts[name] < least or not float(counts[name]).is_integer():
            raise CalibrationError(
                f"{where}: field {name!r}: expected a whole number >= {least}, got {counts[name]!r}"
            )
    return ProfileRow(
        batch=int(counts["batch"]),
        checkpoints=int(counts["checkpoints"]),
        seconds_per_question=_number(data, "seconds_per_question", where),
        std=None if data.get("std") is None else _number(data, "std", where),
        peak_memory_gb=_number(data, "peak_memory_gb", where),
    )


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
