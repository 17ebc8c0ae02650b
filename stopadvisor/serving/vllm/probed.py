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

import numpy as np

from stopadvisor.engines.http.completion import Completion
from stopadvisor.engines.trace import token_statistics
from stopadvisor.ground.errors import EngineError

__all__ = ["Likeliest", "Position", "figures", "positions"]

_ROUNDING = 1e-5
"""By which probabilities of a whole vocabulary, in 32 bits, may miss 1."""


class Position(NamedTuple):
    """Log-probabilities at one token of an answer."""

    own: float
    """Of the token itself."""
    likeliest: list[float]
    """Of the likeliest tokens, descending; nats."""


def positions(logprobs: Any, ids: Sequence[int], k: int) -> list[Position]:
    """Return what is named at each token of `ids`.

    Parameters
    ----------
    logprobs : FlatLogprobs
        vLLM's log-probabilities of the tokens, as lists over all positions.  At each position the
        decoded token stands first, and once more where it is among the likeliest; vLLM drops the
        second copy when it merges outputs, so that nothing here depends on order or copies.
    k : int
        How many likeliest tokens were asked for; -1 for all.

    Raises
    ------
    EngineError
        The engine left out a decoded token.
    """
    rows = []
    ends = (
        () if logprobs is None else zip(logprobs.start_indices, logprobs.end_indices, strict=True)
    )
    for token, (begin, end) in zip(ids, ends, strict=False):
        named, at = np.unique(logprobs.token_ids[begin:end], return_index=True)
        values = np.array(logprobs.logprobs[begin:end])[at]  # (n_named,)
        own = values[named == token]
        if len(own) == 0:
            break
        likeliest = np.sort(values)[::-1]
        rows.append(Position(float(own[0]), (likeliest if k < 0 else likeliest[:k]).tolist()))
    if len(rows) < len(ids):
        raise EngineError("the engine gives no log-probability of a token it decoded")
    return rows


def figures(rows: Sequence[Position]) -> list[tuple[float, float, float]]:
    """Return log-probability, entropy and tail mass of each token."""
    own = tuple(row.own for row in rows)
    top = tuple(tuple(row.likeliest) for row in rows)
    whole = Completion(None, "", own, top, "stop", 0, 0, None, 0.0)
    return token_statistics(whole, len(rows), len(top[0]))


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
