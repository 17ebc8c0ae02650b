"""The serving regime of a server, measured: who pays for the tokens that are sent again.

Prompts that nobody sent before are sent twice; what the server says it took from its cache, and
how long it took, tell a prefix cache, its block size, and a server that computes everything again.
Probes that were recorded say whether that held under load.  Knows a client's `complete`; nothing
of workloads, answers or policies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from stopadvisor.errors import ProbeError
from stopadvisor.json_text import parse_json
from stopadvisor.runs.storage import write_json_atomically

if TYPE_CHECKING:
    from stopadvisor.engines.http.client import Client
    from stopadvisor.engines.openai.model import ServedModel
    from stopadvisor.engines.openai.requests import RequestUsage

__all__ = [
    "SERVING",
    "Cached",
    "Regime",
    "RegimeMeasure",
    "Repeated",
    "classify",
    "found_in_cache",
    "measure_regime",
    "measure_server",
    "read_regime",
    "write_regime",
]

Regime = Literal["kv-fork", "prefix-cache", "black-box"]
_Basis = Literal["cached-tokens", "wall-clock"]

SERVING = "serving.json"
"""Where a run directory keeps the measure."""
_SCHEMA = 1

LONGEST = 4096
"""Tokens of the longest prompt that is sent, where the context leaves room for it."""
SHARES = (0.12, 0.28, 0.5, 0.7, 0.9)
"""Lengths, as shares of the longest."""
SPREAD = 0.1
"""Up to so much is added to a share, by chance: counts that all happen to be multiples of two
blocks would pass for blocks of twice the size."""
REPEATS = 3
_ROOM = 8
"""Tokens of the context that are left free."""
HELD = 0.5
"""Where a smaller share of what could come from the cache does, the server counts as black box."""
FREE = 0.05
"""Below this part of prefilling, reading a prefix back costs nothing that matters."""


_WORDS = "The quick brown fox jumps over 13 lazy dogs: 24 + 57 = 81, is it not? (6, 8, 90)"
"""What prompts to be sent twice are made of, shuffled."""


@dataclass(frozen=True)
class Repeated:
    """One prompt, sent for the first and for the second time."""

    tokens: int
    cached: int | None
    """Tokens that the second time came from the cache; None where the server does not say."""
    first_seconds: float
    second_seconds: float


@dataclass(frozen=True)
class Cached:
    """What probes found in the cache while a run was recorded."""

    requests: int
    standing_tokens: int
    """Tokens of their prefixes that an earlier request of the same question had sent or decoded,
    in whole blocks: what could have come from the cache."""
    cached_tokens: int
    """What did."""

    @property
    def share(self) -> float | None:
        """Part that did; None where nothing could."""
        return self.cached_tokens / self.standing_tokens if self.standing_tokens else None


@dataclass(frozen=True)
class RegimeMeasure:
    """Which of the serving regimes a server really is, and what shows it."""

    regime: Regime | None
    """None where neither cached tokens nor seconds tell."""
    cache_block: int | None
    """Tokens per block of its cache; None where nothing is cached or the server does not say."""
    basis: _Basis
    reason: str
    """In words."""
    read_cost: float | None
    """Seconds of reading a token back, as a part of those of prefilling it; None where prefilling
    is too fast to be timed."""
    repeated: tuple[Repeated, ...]
    probes: Cached | None = None

    def to_dict(self) -> dict[str, Any]:
        """What ``serving.json`` holds."""
        return {"schema": _SCHEMA} | asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RegimeMeasure:
        """Read it back; the verdict is drawn from the figures again."""
        if data["schema"] != _SCHEMA:
            raise ValueError(f"field 'schema' must be {_SCHEMA}, got {data['schema']!r}")
        if data["basis"] not in get_args(_Basis):
            raise ValueError(
                f"field 'basis' must be one of {get_args(_Basis)}, got {data['basis']!r}"
            )
        probes = Cached(**data["probes"]) if data["probes"] else None
        return classify([Repeated(**row) for row in data["repeated"]], probes)


async def measure_regime(
    client: Client, vocabulary: Sequence[int], *, context: int | None = None
) -> RegimeMeasure:
    """Send prompts twice, one request at a time, and see what the second time costs.

    They are made of the token ids of `vocabulary`; those of any rendered prompt will do.
    `context` is the most tokens that the server takes.
    """
    ids = np.unique(np.asarray(vocabulary, dtype=np.int64))
    longest = min(LONGEST, (context or LONGEST) - _ROOM)
    # Not seeded: a prompt that an earlier measurement sent may stand in the cache still.
    rng = np.random.default_rng()
    rows = []
    for turn in range(max(REPEATS, len(client.urls))):
        replica = turn % len(client.urls)
        for share in SHARES:
            tokens = max(2, round((share + SPREAD * rng.random()) * longest))
            prompt = rng.choice(ids, tokens).tolist()
            first = await client.complete(prompt, max_tokens=1, replica=replica)
            second = await client.complete(prompt, max_tokens=1, replica=replica)
            rows.append(Repeated(tokens, second.cached_tokens, first.seconds, second.seconds))
    return classify(rows)


async def measure_server(
    model: ServedModel, requests: Sequence[RequestUsage], cue: str
) -> RegimeMeasure:
    """Measure the server of a model that was probed, and hold what its probes found against it."""
    suffix = len(model.chat.suffix_ids(cue))
    vocabulary = model.chat.prompt_ids([{"role": "user", "content": _WORDS}])
    found = await measure_regime(model.client, vocabulary, context=model.context)
    if found.cache_block is None:
        return found
    return classify(found.repeated, found_in_cache(requests, suffix, found.cache_block))


def found_in_cache(requests: Sequence[RequestUsage], suffix: int, block: int) -> Cached:
    """Add up what probes could find in a cache with these blocks, and what they found.

    Requests that are no probes are passed over.  `suffix` is the length of closer and cue, which no
    earlier request of the question has sent.
    """
    rows = [
        ((row.prompt_tokens - suffix) // block * block, row.cached_tokens)
        for row in requests
        if row.kind == "probe" and row.cached_tokens is not None
    ]
    return Cached(
        requests=len(rows),
        standing_tokens=sum(standing for standing, _ in rows),
        # A question that is asked again, after the preflight, finds its suffix too.
        cached_tokens=sum(min(standing, cached) for standing, cached in rows),
    )


def classify(repeated: Sequence[Repeated], probes: Cached | None = None) -> RegimeMeasure:
    """Say which regime the figures show.

    What probes found overrules the repeated prompts where the cache did not hold under load.

    Notes
    -----
    Cached tokens decide where the server gives them: blocks have the greatest size that divides
    all counts.  A cache without blocks whose reading takes less than a twentieth of prefilling is
    as good as a fork of the live cache (``kv-fork``).  Without counts seconds decide: medians of
    the slopes between requests of different length, so that one that was held up changes little.
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
    """Slope of the second time over that of the first; None where the first's is lost in noise."""
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


# --- In a run directory ---------------------------------------------------------------------------


def write_regime(folder: Path, measure: RegimeMeasure) -> None:
    """Keep a measure beside the probes that were recorded on that server."""
    write_json_atomically(folder / SERVING, measure.to_dict())


def read_regime(folder: Path) -> RegimeMeasure | None:
    """Return what was measured while a run was recorded; None where nothing was."""
    file = folder / SERVING
    try:
        return RegimeMeasure.from_dict(parse_json(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProbeError(f"{file}: not a measure of a server ({error}); remove it") from error
