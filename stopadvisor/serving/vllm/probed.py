"""Means of vLLM's log-probabilities of a forced answer, and its entropy.

The entropy over the whole vocabulary takes all of its log-probabilities, which vLLM sorts for every
request of the step and hands over one by one.  Those of a few tokens enclose it, most often closely
enough to decide.  Knows the form of vLLM's ``FlatLogprobs``, and imports nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from stopadvisor.engines.http.completion import Completion
from stopadvisor.engines.openai.trace import token_statistics
from stopadvisor.errors import EngineError

__all__ = ["Likeliest", "Position", "figures", "positions"]

_ROUNDING = 1e-5
"""By which probabilities of a whole vocabulary, in 32 bits, may miss 1."""


class Position(NamedTuple):
    """Log-probabilities at one token of an answer."""

    token: int
    own: float
    """Of the token itself."""
    likeliest: list[float]
    """Of the likeliest tokens, descending; nats."""


def positions(found: Any) -> list[Position]:
    """Return what is named at each position.

    `found` is vLLM's ``FlatLogprobs``, which holds them in one list, the decoded token first:
    others hold an object for each token of a position, and a whole vocabulary of them costs more
    than the probe.
    """
    return [
        Position(found.token_ids[begin], found.logprobs[begin], found.logprobs[begin + 1 : end])
        for begin, end in zip(found.start_indices, found.end_indices, strict=True)
    ]


def figures(
    ids: Sequence[int], rows: Sequence[Position], k: int | None
) -> list[tuple[float, float, float]]:
    """Return log-probability, entropy and tail mass of each token; zeros where none were asked for.

    Raises
    ------
    EngineError
        The engine left some out.
    """
    if k is None:
        return [(0.0, 0.0, 0.0)] * len(ids)
    rows = rows[: len(ids)]
    if [row.token for row in rows] != list(ids):
        raise EngineError("the engine gives no log-probability of a token it decoded")
    own = tuple(row.own for row in rows)
    top = tuple(tuple(row.likeliest) for row in rows)
    whole = Completion(None, "", own, top, "stop", 0, 0, None, 0.0)
    return token_statistics(whole, len(ids), len(top[0]) if k < 0 and top else k)


@dataclass(frozen=True)
class Likeliest:
    """Encloses the entropy over a vocabulary by its likeliest tokens."""

    vocabulary: int
    count: int = 64
    """Tokens that are asked for."""

    def rest(self, rows: Sequence[Position]) -> tuple[float, float]:
        """Return what the others add to the mean entropy, and by how much that may be off; nats.

        All that is left of 1 adds least where each of the others is as likely as the last that is
        named, and most where all are equally likely.
        """
        least = most = 0.0
        for row in rows:
            left = 1.0 - math.fsum(map(math.exp, row.likeliest))
            least += max(left - _ROUNDING, 0.0) * min(-row.likeliest[-1], 1e4)
            upper = max(left, 0.0) + _ROUNDING
            most += upper * math.log((self.vocabulary - self.count) / upper)
        return (least + most) / 2 / len(rows), (most - least) / 2 / len(rows)
