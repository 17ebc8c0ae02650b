"""Measuring the serving regime of a server: who pays for the tokens that are sent again.

Prompts that nobody sent before are sent twice; probes that were recorded say whether what that
shows held under load.  Knows a client's `complete`; nothing of workloads, answers or policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from stopadvisor.runs.server_regime import Cached, RegimeMeasure, Repeated, classify

if TYPE_CHECKING:
    from stopadvisor.engines.http.client import Client
    from stopadvisor.engines.openai.served_model import ServedModel
    from stopadvisor.engines.trace import RequestUsage

__all__ = ["found_in_cache", "measure_regime", "regime_of_server"]

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

_WORDS = "The quick brown fox jumps over 13 lazy dogs: 24 + 57 = 81, is it not? (6, 8, 90)"
"""What prompts to be sent twice are made of, shuffled."""


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


async def regime_of_server(
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
