"""Replies of a ladder as columns of the table: their agreement and their cost.

A ladder gives a list of replies to each question, and the last one is the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Self

from numpy.typing import NDArray

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.errors import ProbeError

__all__ = ["Rungs", "Spent", "Votes", "known_mean"]


@dataclass(frozen=True)
class Spent:
    """Cost of replies, in tokens of each kind, at the prices of their rungs, and in time.

    All arrays have the shape (n_questions, n_columns).
    """

    prefilled: FloatArray
    """Prompt tokens that were prefilled."""
    cached: FloatArray
    """Prompt tokens that were cache hits."""
    decoded: FloatArray
    """Thinking and answer tokens."""
    requests: FloatArray
    price: FloatArray
    """Price of all tokens, in the unit of the ladder's prices."""
    seconds: FloatArray
    """Time of the requests, one after the other; NaN where it was not measured."""

    def each(self, change: Callable[..., Any], *others: Spent) -> Spent:
        """Apply a function to every array, and to those of other costs with it."""
        return Spent(*map(change, *(vars(spent).values() for spent in (self, *others))))


@dataclass(frozen=True)
class Rungs:
    """Columns of a table that are replies of a ladder, ending with the reference.

    Arrays have the shape (n_questions, n_columns).  A rung that is sampled several times has a
    column per sample: its answer is the plurality so far, its cost that of all samples so far.
    """

    names: tuple[str, ...]
    """Rung of each column; empty in a rule's view, whose columns are steps of a path."""
    rates: tuple[tuple[float, ...], ...]
    """Price of a prefilled, cached and decoded token in each column; empty if `names` is."""
    spent: Spent
    """Cost of asking for this column's reply alone."""
    served: BoolArray
    """Whether the reply can be served: it ended by itself and has an answer."""
    support: IntArray
    """Number of equal answers in a row, ending here; among samples, the leader's lead."""
    share: FloatArray
    """Share of the samples so far with this answer; 1 if a rung is asked once."""
    is_reference: BoolArray
    """Whether the reply is the reference's own."""
    whole: tuple[int, ...] = ()
    """Columns that cannot be abandoned at a cap, because the rung's own policy ends them."""

    def __post_init__(self) -> None:
        if not self.is_reference[:, -1].all():
            raise ProbeError("the last column of a ladder is its reference")

    @property
    def blocks(self) -> tuple[range, ...]:
        """Columns of each rung, in the order of climbing."""
        starts = [k for k, name in enumerate(self.names) if k == 0 or name != self.names[k - 1]]
        ends = [*starts[1:], len(self.names)]
        return tuple(range(a, b) for a, b in zip(starts, ends, strict=True))

    @property
    def contains_reference(self) -> bool:
        """Whether the reference is the plurality of a single rung, asked several times."""
        return len(self.blocks) == 1

    def canonical(self) -> tuple[Any, ...]:
        """Plain values that are equal exactly if the data are; no promise depends on the time."""
        costs = [array for name, array in vars(self.spent).items() if name != "seconds"]
        arrays = (*costs, self.served, self.support, self.share)
        known = self.names, self.rates, tuple(array.tobytes() for array in arrays)
        return (*known, self.whole) if self.whole else known

    def map(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Self:
        """Apply a selection of questions or columns to every array."""
        arrays = ("served", "support", "share", "is_reference")
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in arrays}
        return replace(self, spent=self.spent.each(change), **changed)


def known_mean(seconds: FloatArray) -> float | None:
    """Mean time; None if it was not measured."""
    mean = float(seconds.mean())
    return None if math.isnan(mean) else mean


class Votes:
    """Counts how far the replies to one question agree, as they arrive."""

    def __init__(self) -> None:
        self._run, self._seen = 0, 0
        self._before: Hashable = None
        self._counts: dict[Hashable, int] = {}  # samples of one rung, in order of arrival
        self._first: dict[Hashable, int] = {}

    @property
    def most(self) -> int:
        """Most replies in agreement."""
        return max(self._run, *self._counts.values(), 0)

    def add(self, answer: Hashable, made: int) -> tuple[Any, int, float, int]:
        """Add a reply; return the answer so far, its support and share, and who gave it first.

        `answer` is None if the reply has none.  `made` numbers the samples of a rung from 1, and is
        0 if the rung is asked once.
        """
        at, self._seen = self._seen, self._seen + 1
        has_one = answer is not None
        if not made:
            self._run = self._run + 1 if has_one and answer == self._before else int(has_one)
            self._before = answer
            return answer, self._run, 1.0, at
        if made == 1:
            self._counts, self._first = {}, {}
        if has_one:
            self._counts[answer] = self._counts.get(answer, 0) + 1
            self._first.setdefault(answer, at)
        # A dict keeps the order of arrival, and max takes the first of equals.
        leader = max(self._counts, key=self._counts.__getitem__, default=None)
        top = self._counts.get(leader, 0)
        second = max((n for other, n in self._counts.items() if other != leader), default=0)
        self._run, self._before = 1, leader
        return leader, top - second, top / made, self._first.get(leader, at)
