"""Replies of a ladder as columns of the table: what each shows, and what it costs.

A ladder is a list of replies to one question, the last of which is the reference.  Nothing above
the table asks where they came from.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.errors import ProbeError

__all__ = ["Rungs", "Spent", "Votes", "votes"]


@dataclass(frozen=True)
class Spent:
    """What replies cost, in tokens of each kind and in the prices of their rungs.

    Arrays of one shape, (n_questions, n_columns).
    """

    prefilled: FloatArray
    """Prompt tokens that were read again."""
    cached: FloatArray
    """Prompt tokens that were found in a cache."""
    decoded: FloatArray
    """Thinking and answer."""
    requests: FloatArray
    price: FloatArray
    """Sum over all tokens, in the unit of the ladder's prices."""

    def each(self, change: Callable[[FloatArray], FloatArray]) -> Spent:
        """Change every array alike."""
        return Spent(*(change(getattr(self, f.name)) for f in fields(self)))

    def where(self, chosen: BoolArray, other: Spent) -> Spent:
        """These where chosen, else the others."""
        found = zip(vars(self).values(), vars(other).values(), strict=True)
        return Spent(*(np.where(chosen, ours, theirs) for ours, theirs in found))

    def plus(self, other: Spent) -> Spent:
        """Sum, array by array."""
        return Spent(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Rungs:
    """The columns of a table whose answers are replies of a ladder, the reference last.

    Shapes (n_questions, n_columns).  A rung that is asked several times has as many columns: the
    answer of each is the plurality so far, and its cost is that of all samples so far.
    """

    names: tuple[str, ...]
    """Rung of each column; of a rule's view, whose columns are steps of a path, empty."""
    rates: tuple[tuple[float, ...], ...]
    """Price of a prefilled, cached and decoded token of each column; empty as `names`."""
    spent: Spent
    """What is paid where the answer of this column is served, and asked for alone."""
    served: BoolArray
    """Whether the reply can be served: it ended by itself, with an answer."""
    support: IntArray
    """Equal answers in a row, ending here; among samples the leader's lead."""
    share: FloatArray
    """Of the samples so far, how many gave this answer; 1 where a rung is asked once."""
    is_reference: BoolArray
    """Where the reply is the reference's own."""
    whole: tuple[int, ...] = ()
    """Columns that cannot be abandoned at a cap: a policy of their own ends them."""

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
        """Whether the reference is made of the rungs before it: one rung, asked several times."""
        return len(self.blocks) == 1

    def canonical(self) -> tuple[Any, ...]:
        """All that it holds, as plain values that name the same data whenever they are equal."""
        arrays = (*vars(self.spent).values(), self.served, self.support, self.share)
        known = self.names, self.rates, tuple(array.tobytes() for array in arrays)
        return (*known, self.whole) if self.whole else known

    def map(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Self:
        """Change every array alike: pick questions, or columns."""
        return replace(
            self,
            spent=self.spent.each(change),
            served=change(self.served),
            support=change(self.support),
            share=change(self.share),
            is_reference=change(self.is_reference),
        )


class Votes:
    """What the replies to one question agree on, as they come."""

    def __init__(self) -> None:
        self._run, self._seen = 0, 0
        self._before: Hashable = None
        self._counts: dict[Hashable, int] = {}  # of the samples of one rung, in the order they came
        self._first: dict[Hashable, int] = {}

    @property
    def most(self) -> int:
        """Most replies in agreement."""
        return max(self._run, *self._counts.values(), 0)

    def add(self, answer: Hashable, made: int) -> tuple[Any, int, float, int]:
        """The answer so far, its support and share, and which reply gave it first, from 0.

        `answer` is None where the reply has none.  `made` numbers the samples of a rung from 1; it
        is 0 where the rung is asked once.
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
        # A dict keeps the order in which answers came, and max takes the first of equals.
        leader = max(self._counts, key=self._counts.__getitem__, default=None)
        top = self._counts.get(leader, 0)
        second = max((n for other, n in self._counts.items() if other != leader), default=0)
        self._run, self._before = 1, leader
        return leader, top - second, top / made, self._first.get(leader, at)


def votes(
    codes: NDArray[np.int64], blocks: Sequence[range]
) -> tuple[IntArray, IntArray, FloatArray]:
    """Answer, support and share of each column; all of shape (n_questions, n_columns).

    `codes` holds the answer of each reply by itself, below 0 where it has none or was cut; the
    answer of a column is the plurality of its samples so far, of two the one that came first.
    """
    answers, support, share = codes.copy(), np.zeros_like(codes), np.ones(codes.shape)
    for row, given in enumerate(codes.tolist()):
        so_far = Votes()
        for block in blocks:
            for made, k in enumerate(block, start=1):
                own = given[k] if given[k] >= 0 else None
                found = so_far.add(own, made if len(block) > 1 else 0)
                answers[row, k] = -1 if found[0] is None else found[0]
                support[row, k], share[row, k] = found[1:3]
    return answers, support, share
