"""The serving regime of a server: the measurement, the verdict, and its file in a run.

Cached tokens and seconds of prompts that were sent twice reveal a prefix cache and its block size,
or a server that computes everything again.  Asks no server.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from stopadvisor.ground.errors import ProbeError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.runs.storage import write_json_atomically

__all__ = [
    "SERVING",
    "Cached",
    "Regime",
    "RegimeMeasure",
    "Repeated",
    "classify_regime",
    "read_regime",
    "write_regime",
]

Regime = Literal["kv-fork", "prefix-cache", "black-box"]
_Basis = Literal["cached-tokens", "wall-clock"]

SERVING = "serving.json"
"""File of the measurement in a run directory."""
_SCHEMA = 1

HELD = 0.5
"""A server that reads a smaller share of what it could from its cache counts as a black box, and so
does one that says nothing of its cache and takes at least this part of prefilling to read again."""
FREE = 0.05
"""Reading a prefix back costs nothing that matters below this part of prefilling it."""


@dataclass(frozen=True)
class Repeated:
    """One prompt, sent for the first and for the second time."""

    tokens: int
    cached: int | None
    """Tokens that came from the cache the second time; None if the server does not say."""
    first_seconds: float
    second_seconds: float


@dataclass(frozen=True)
class Cached:
    """How much of the probes' prefixes came from the cache while a run was recorded."""

    requests: int
    standing_tokens: int
    """Tokens of their prefixes that an earlier request of the same question had sent or decoded,
    in whole blocks: what could have come from the cache."""
    cached_tokens: int
    """Tokens that did come from the cache."""

    @property
    def share(self) -> float | None:
        """Share of the standing tokens that came from the cache; None if there were none."""
        return self.cached_tokens / self.standing_tokens if self.standing_tokens else None


@dataclass(frozen=True)
class RegimeMeasure:
    """The serving regime that a server really has, and the figures that show it."""

    regime: Regime | None
    """None if neither cached tokens nor seconds tell."""
    cache_block: int | None
    """Tokens per block of its cache; None if it caches nothing or does not say."""
    basis: _Basis
    reason: str
    """The verdict in words."""
    read_cost: float | None
    """Seconds of reading a token back over seconds of prefilling it; None if prefilling is too fast
    to be timed."""
    repeated: tuple[Repeated, ...]
    probes: Cached | None = None

    def to_dict(self) -> dict[str, Any]:
        """Content of ``serving.json``."""
        return {"schema": _SCHEMA} | asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RegimeMeasure:
        """Read it back; the verdict follows from the figures again."""
        if data["schema"] != _SCHEMA:
            raise ValueError(f"field 'schema' must be {_SCHEMA}, got {data['schema']!r}")
        if data["basis"] not in get_args(_Basis):
            raise ValueError(
                f"field 'basis' must be one of {get_args(_Basis)}, got {data['basis']!r}"
            )
        probes = Cached(**data["probes"]) if data["probes"] else None
        return classify_regime([Repeated(**row) for row in data["repeated"]], probes)


def classify_regime(repeated: Sequence[Repeated], probes: Cached | None = None) -> RegimeMeasure:
    """Say which regime the figures show.

    The probes overrule the repeated prompts if the cache did not hold under load.

    Notes
    -----
    Cached tokens decide if the server gives them: the block size is the greatest that divides all
    counts.  A cache without blocks whose reading takes less than `FREE` of prefilling is as good as
    a fork of the live cache (``kv-fork``).  Without counts seconds decide: medians of the slopes
    between requests of different length, so that a single delayed request changes little.
    """
    cost = _read_cost(repeated)
    took = "" if cost is None else f"; rereading a cached token costs {cost:.0%} of prefilling it"
    counts = [row.cached for row in repeated if row.cached is not None]
    regime: Regime | None
    block: int | None = None
    if len(counts) < len(repeated) or not counts:
        basis: _Basis = "wall-clock"
        if cost is None:
            regime = None
            reason = (
                "the server does not say what it cached, and prefilling is too fast to be timed"
            )
        else:
            regime = "prefix-cache" if cost < HELD else "black-box"
            reason = f"the server does not say what it cached{took}"
    else:
        basis = "cached-tokens"
        block = math.gcd(*counts) or None
        sent = sum(row.tokens for row in repeated)
        if block is None:
            regime = "black-box"
            reason = f"of {sent} tokens that were sent again none came from the cache{took}"
        else:
            regime = "kv-fork" if block == 1 and (cost is None or cost < FREE) else "prefix-cache"
            share, of = sum(counts) / sent, _in_blocks(block)
            reason = f"{share:.0%} of the tokens sent again came from the cache, {of}{took}"
    if probes is not None and probes.share is not None and regime != "black-box":
        reason += f"; of the probes' prefixes {probes.share:.0%}"
        if probes.share < HELD:
            regime, block = "black-box", None
            reason += ": under load the cache does not hold them"
    return RegimeMeasure(regime, block, basis, reason, cost, tuple(repeated), probes)


def _in_blocks(block: int) -> str:
    return "token by token" if block == 1 else f"in blocks of {block} tokens"


def _read_cost(repeated: Sequence[Repeated]) -> float | None:
    """Slope of the second times over that of the first; None if the latter is lost in noise."""
    tokens = np.array([row.tokens for row in repeated])
    first = np.array([row.first_seconds for row in repeated])
    second = np.array([row.second_seconds for row in repeated])
    width = float(np.ptp(tokens)) if len(tokens) else 0.0
    later, earlier = np.nonzero(tokens[:, None] - tokens >= max(1.0, width / 5))
    if not len(later):
        return None
    apart = tokens[later] - tokens[earlier]
    cold = (first[later] - first[earlier]) / apart
    warm = (second[later] - second[earlier]) / apart
    slope = float(np.median(cold))
    if np.quantile(cold, 0.1) <= 0 or slope * width < 0.2 * float(np.median(first)):
        return None
    return max(0.0, float(np.median(warm)) / slope)


def write_regime(folder: Path, measure: RegimeMeasure) -> None:
    """Keep a measurement with the probes that were recorded on that server."""
    write_json_atomically(folder / SERVING, measure.to_dict())


def read_regime(folder: Path) -> RegimeMeasure | None:
    """The measurement taken while a run was recorded; None if there was none."""
    file = folder / SERVING
    try:
        return RegimeMeasure.from_dict(parse_json(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProbeError(f"{file}: not a measure of a server ({error}); remove it") from error
