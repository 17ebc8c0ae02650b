"""Has the traffic changed?  An anytime-valid test that new values are distributed like old ones.

A conformal test martingale: while reference values and new ones are exchangeable, each new value's
smoothed rank among all values so far is uniform and independent of earlier ranks, so no bet against
that has a positive expected gain.  It says nothing about risk: a change may be harmless, and harm
may leave the ranks unchanged.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["ExchangeabilityTest", "coarse"]

_JUMP = 0.01
"""Share of the capital redistributed among the bets at each value, so a bet can start late."""
_STAY = 1 - _JUMP
_MOST = 1e12
"""Capital above this is given away before the next bet."""
_REMEMBERED = 8192
"""Most values whose place is cached."""


def coarse(value: float) -> float:
    """Round a value to a scale with steps of about 9 % of 1 + |value|, to count few levels.

    The scale is fixed beforehand, not fitted to the values, so they stay exchangeable.
    """
    if value == 0:
        return 0.0
    return math.copysign(round(8 * math.log2(1 + abs(value))) + 1, value)


class ExchangeabilityTest:
    """One feature of the traffic, value by value.

    Notes
    -----
    The smoothed rank ``p = (#larger + tie * #equal) / #all`` of each value, itself included, is
    uniform and independent of earlier ones if all values are exchangeable (Vovk, Gammerman,
    Shafer, Algorithmic Learning in a Random World).  `capital` is the Simple Jumper's: it starts at
    1 and is spread over the bets ``1 + slope * (p - 1/2)`` with slopes -1, 0 and 1, and a small
    share of it is spread evenly again before each bet.  Under exchangeability the probability that
    it ever reaches 1 / delta is at most delta.
    """

    def __init__(self, reference: Iterable[float]) -> None:
        self._values: list[float] = []
        self._counts: list[int] = []
        self._places: dict[float, int] = {}
        self._number = 0
        self._bets = (1 / 3, 1 / 3, 1 / 3)
        self.capital = 1.0
        """Evidence of a change: an e-value at any time."""
        for value in reference:
            self._counts[self._place(value)] += 1
            self._number += 1

    def update(self, value: float, tie: float) -> float:
        """Bet on a new value and return `capital`; `tie` is a fresh uniform draw from [0, 1)."""
        counts = self._counts
        place = self._places.get(value)
        if place is None:
            place = self._place(value)
        counts[place] += 1
        self._number += 1
        slope = (sum(counts[place + 1 :]) + tie * counts[place]) / self._number - 0.5
        capital, (small, flat, large) = self.capital, self._bets
        if capital > _MOST:
            scale = _MOST / capital
            small, flat, large = small * scale, flat * scale, large * scale
            capital = small + flat + large
        shared = _JUMP * capital / 3
        small = (_STAY * small + shared) * (1 - slope)
        flat = _STAY * flat + shared
        large = (_STAY * large + shared) * (1 + slope)
        self._bets = (small, flat, large)
        self.capital = capital = small + flat + large
        return capital

    def _place(self, value: float) -> int:
        """Index of a value's level in the counts; cached until a new level shifts it."""
        level, levels = coarse(value), self._values
        place = bisect_left(levels, level)
        if place == len(levels) or levels[place] != level:
            levels.insert(place, level)
            self._counts.insert(place, 0)
            self._places.clear()
        elif len(self._places) >= _REMEMBERED:
            self._places.clear()
        self._places[value] = place
        return place

    def state(self) -> dict[str, Any]:
        """State for `restore`, as JSON values."""
        return {"values": self._values, "counts": self._counts, "bets": list(self._bets)}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> ExchangeabilityTest:
        """Rebuild the test from `state()`; raises ValueError or TypeError if that is damaged."""
        test = cls(())
        test._values, test._counts = [*state["values"]], [*state["counts"]]
        sizes = len(test._values) == len(test._counts), len(state["bets"]) == 3
        if not all((*sizes, *map(math.isfinite, test._values))):
            raise ValueError("expected a count for each value, and three bets")
        if min(0, *test._counts, *state["bets"]) < 0:
            raise ValueError("expected counts and bets >= 0")
        test._number, test._bets = sum(test._counts), tuple(state["bets"])
        test.capital = sum(test._bets)
        return test
