"""Where a trace is probed: at given budgets, every so many tokens, or where a marker begins.

A position is a number of thinking tokens: the probe there reads exactly those.  A trigger reads
thinking tokens in their order and looks at nothing else, so the same thinking gives the same
positions, whether it comes token by token, in pieces, or all at once from a record.

Knows token ids and counts.  Does not know text, sentences, models, or when a rule stops; which
tokens are thinking is decided by its caller (`session.Session`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol

from stopadvisor.errors import PolicyError

__all__ = ["GridTrigger", "MarkerTrigger", "Positions", "StrideTrigger", "Trigger"]


class Positions(ABC):
    """The positions of one trace, one after the other, as its thinking comes in."""

    @abstractmethod
    def feed(self, ids: Sequence[int] | int) -> None:
        """Take in further thinking tokens: their ids, or how many, where ids are not needed."""

    @abstractmethod
    def finish(self) -> None:
        """Take note that the thinking is over: no more tokens come."""

    @abstractmethod
    def next(self) -> int | None:
        """Give the position to probe next, or None while it is not known.

        A position is known once the trace has more thinking tokens than it: where a trace ends,
        it is not probed.
        """

    @abstractmethod
    def advance(self) -> None:
        """Go on to the next position, once the one that `next` gives was probed."""

    @property
    @abstractmethod
    def wanted(self) -> int | None:
        """Fewest thinking tokens with which `next` may know more; None if no position is left."""

    @property
    @abstractmethod
    def earliest(self) -> int | None:
        """The least that the position which `next` does not know yet can be; None if none is left.

        Thinking before it can be shown.
        """


class Trigger(Protocol):
    """A rule for positions; frozen, and shared by all traces of a policy."""

    @property
    def kind(self) -> Literal["grid", "stride", "marker"]:
        """Which of the three rules this is."""
        ...

    @property
    def needs_ids(self) -> bool:
        """Whether it reads token ids; otherwise counts are enough."""
        ...

    @property
    def probes(self) -> bool:
        """Whether it gives any position at all; a policy of kind ``full-budget`` has none."""
        ...

    def start(self) -> Positions:
        """Begin a trace."""
        ...


@dataclass(frozen=True)
class GridTrigger:
    """The same positions in every trace: the budgets of a policy."""

    budgets: tuple[int, ...]
    """Thinking tokens, strictly increasing; empty for no probe at all."""
    kind: Literal["grid"] = "grid"
    needs_ids: Literal[False] = False

    def __post_init__(self) -> None:
        if any(budget < 0 for budget in self.budgets[:1]) or any(
            before >= after for before, after in pairwise(self.budgets)
        ):
            raise PolicyError(
                f"budgets must be strictly increasing integers >= 0, got {list(self.budgets)}"
            )

    @property
    def probes(self) -> bool:
        """Whether there is any budget."""
        return bool(self.budgets)

    def start(self) -> Positions:
        """Begin a trace."""
        return _ListedPositions(self.budgets)


@dataclass(frozen=True)
class StrideTrigger:
    """Every so many tokens, up to a cap."""

    every: int
    """The first position, and the distance from each to the next."""
    cap: int
    """No position lies beyond it; usually the most thinking tokens of a trace."""
    kind: Literal["stride"] = "stride"
    needs_ids: Literal[False] = False

    def __post_init__(self) -> None:
        _check_at_least_one("every", self.every)
        _check_at_least_one("cap", self.cap)

    @property
    def probes(self) -> bool:
        """Whether the first position lies below the cap."""
        return self.every <= self.cap

    def start(self) -> Positions:
        """Begin a trace."""
        return _ListedPositions(range(self.every, self.cap + 1, self.every))


@dataclass(frozen=True)
class MarkerTrigger:
    """Just before a marker, such as a sentence's opening ``Wait``.

    Notes
    -----
    Ids are compared, not texts.  That a marker stands at a sentence's beginning has to show in its
    ids: a tokenizer gives ``Wait`` after a line break another id than ``wait`` after a comma.
    Distances are measured from the last position that was probed, the first from the beginning of
    the thinking.  A marker counts if all of its tokens are thinking.
    """

    markers: tuple[tuple[int, ...], ...]
    """Token ids of each marker.  The position is the last token before them."""
    min_gap: int
    """A marker that comes fewer tokens after the last probe is passed over."""
    max_probes: int
    """No trace is probed more often."""
    every: int | None = None
    """Where no marker has come for so many tokens, probe there; None: at markers only."""
    kind: Literal["marker"] = "marker"
    needs_ids: Literal[True] = True
    probes: Literal[True] = True

    def __post_init__(self) -> None:
        if not self.markers or not all(self.markers):
            raise PolicyError(
                f"markers must be sequences of at least one token id, got {self.markers!r}"
            )
        _check_at_least_one("min_gap", self.min_gap)
        _check_at_least_one("max_probes", self.max_probes)
        if self.every is not None and self.every < self.min_gap:
            raise PolicyError(f"every must be at least min_gap {self.min_gap}, got {self.every}")

    def start(self) -> Positions:
        """Begin a trace."""
        return _MarkerPositions(self)


def _check_at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise PolicyError(f"{name} must be at least 1, got {value}")


class _ListedPositions(Positions):
    """Positions that are known before the trace begins."""

    __slots__ = ("_left", "_next", "_tokens")

    def __init__(self, positions: Iterable[int]) -> None:
        self._left = iter(positions)
        self._next = next(self._left, None)
        self._tokens = 0

    def feed(self, ids: Sequence[int] | int) -> None:
        self._tokens += ids if isinstance(ids, int) else len(ids)

    def finish(self) -> None:
        if self._next is not None and self._next >= self._tokens:
            self._next = None

    def next(self) -> int | None:
        return self._next if self._next is not None and self._next < self._tokens else None

    def advance(self) -> None:
        self._next = next(self._left, None)

    @property
    def wanted(self) -> int | None:
        return None if self._next is None else self._next + 1

    @property
    def earliest(self) -> int | None:
        return self._next


class _MarkerPositions(Positions):
    """Positions that are found in the ids."""

    def __init__(self, trigger: MarkerTrigger) -> None:
        self._trigger = trigger
        self._shortest = min(map(len, trigger.markers))
        self._ids: list[int] = []
        self._over = False
        self._probes = 0
        self._last = 0
        """Where the last probe was; at first the beginning of the thinking."""
        self._looked = 0
        """No marker that counts begins at a token before this one."""
        self._found: int | None = None

    def feed(self, ids: Sequence[int] | int) -> None:
        if isinstance(ids, int):
            raise PolicyError(f"a marker trigger needs the tokens' ids, got a count of {ids}")
        self._ids.extend(ids)

    def finish(self) -> None:
        self._over = True

    def next(self) -> int | None:
        if self._found is None and self._probes < self._trigger.max_probes:
            self._found = self._find()
        return self._found

    def advance(self) -> None:
        assert self._found is not None
        self._last, self._found = self._found, None
        self._probes += 1

    @property
    def wanted(self) -> int | None:
        if self._none_left:
            return None
        least = max(self._looked, self._last + self._trigger.min_gap) + self._shortest
        if self._trigger.every is not None:
            least = min(least, self._last + self._trigger.every + 1)
        return max(least, len(self._ids) + 1)

    @property
    def earliest(self) -> int | None:
        if self._none_left:
            return None
        least = max(self._looked, self._last + self._trigger.min_gap)
        if self._trigger.every is not None:
            least = min(least, self._last + self._trigger.every)
        return least

    @property
    def _none_left(self) -> bool:
        return self._probes == self._trigger.max_probes or (self._over and self.next() is None)

    def _find(self) -> int | None:
        trigger, ids = self._trigger, self._ids
        start = max(self._looked, self._last + trigger.min_gap)
        end = len(ids) if trigger.every is None else min(len(ids), self._last + trigger.every + 1)
        while start < end:
            match = self._begins(start)
            if match:
                return start
            if match is None and not self._over:
                break  # more tokens have to tell
            start += 1
        self._looked = start
        if trigger.every is not None and start > self._last + trigger.every:
            return self._last + trigger.every
        return None

    def _begins(self, start: int) -> bool | None:
        """Whether a marker begins at this token; None if its tokens have not all come."""
        unfinished = False
        for marker in self._trigger.markers:
            here = tuple(self._ids[start : start + len(marker)])
            if here == marker:
                return True
            unfinished |= here == marker[: len(here)]
        return None if unfinished else False
