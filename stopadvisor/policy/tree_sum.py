"""A boosted policy's sum of trees: a search for each feature, not a comparison for each node.

All trees are looked at together, as one integer with a byte for each: its bits are the leaves that
can still be reached.  The score is that of a walk down each of them to the last bit: where sums are
exact, what eight trees add is looked up at once; else values are added in the order of the trees.
Knows no feature and no policy.

References
----------
Lucchese et al. (2015), "QuickScorer", SIGIR.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import getitem
from struct import unpack
from typing import Any

from stopadvisor.rules.leaf_bits import LeafBits, leaf_bits, sums_exactly

__all__ = ["TreeSum"]

# A node is its value at a leaf, else (place, threshold, left, right): the fastest walk found.
_Node = Any


_GROUP = 8
"""Trees whose bytes make one key."""
_MOST_SUMS = 1 << 15
"""Sums that are kept, over all groups: five megabytes."""


class TreeSum:
    """Trees given as lists, ready to be evaluated.

    Parameters
    ----------
    trees : sequence of dicts
        Of a checked policy: children stand after their parents.
    places : sequence of int
        Where each feature that the trees number stands among the values of a step.
    start : float
        What their values are added to.
    """

    __slots__ = (
        "_form",
        "_full",
        "_groups",
        "_ones",
        "_searches",
        "_size",
        "_start",
        "_values",
        "_walks",
    )

    def __init__(
        self, trees: Sequence[Mapping[str, Sequence[Any]]], places: Sequence[int], start: float
    ) -> None:
        self._start = start
        bits = [
            leaf_bits(tree["feature"], tree["left"], tree["right"], tree["value"]) for tree in trees
        ]
        small = [found for found in bits if found is not None]
        self._walks: tuple[_Node, ...] = ()
        if len(small) < len(trees):
            self._walks = tuple(_root(tree, places) for tree in trees)
            return
        self._values = tuple(found.values for found in small)
        self._full = sum((len(found.values) - 1) << 8 * k for k, found in enumerate(small))
        self._searches = tuple(
            (place, *_search(trees, small, feature, self._full))
            for feature, place in enumerate(places)
            if any(feature in tree["feature"] for tree in trees)
        )
        self._ones = sum(1 << 8 * k for k in range(len(small)))
        starts = range(0, len(small), _GROUP)
        self._size = _GROUP * len(starts)
        self._form = f"<{len(starts)}Q"
        self._groups: tuple[_Group, ...] = ()
        if sums_exactly([start], *self._values):
            room = _MOST_SUMS // len(starts)
            self._groups = tuple(_Group(self._values[k : k + _GROUP], room) for k in starts)

    def score(self, values: Sequence[float]) -> float:
        """Add the trees' values to the start, the first tree's first."""
        score = self._start
        if self._walks:
            for node in self._walks:
                while type(node) is tuple:
                    place, threshold, left, right = node
                    node = left if values[place] <= threshold else right
                score = score + node
            return score
        possible = self._full
        for place, thresholds, masks in self._searches:
            possible &= masks[bisect_left(thresholds, values[place])]
        if self._groups:
            lowest = possible & ~(possible - self._ones)  # no byte is 0, so none borrows
            keys = unpack(self._form, lowest.to_bytes(self._size, "little"))
            return sum(map(getitem, self._groups, keys), score)
        tables = self._values
        for table, byte in zip(tables, possible.to_bytes(len(tables), "little")):  # noqa: B905
            score = score + table[byte]
        return score


class _Group(dict[int, float]):
    """What a few trees add, by the bytes of their leaves; filled as leaves are met."""

    __slots__ = ("_room", "_values")

    def __init__(self, values: Sequence[Sequence[float]], room: int) -> None:
        self._values = values
        self._room = room

    def __missing__(self, key: int) -> float:
        found = zip(self._values, key.to_bytes(_GROUP, "little"), strict=False)
        added = sum(table[byte] for table, byte in found)
        if len(self) < self._room:
            self[key] = added
        return added


def _search(
    trees: Sequence[Mapping[str, Sequence[Any]]], small: list[LeafBits], feature: int, full: int
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Every threshold of a feature, and the leaves that remain after passing each."""
    passed: defaultdict[float, int] = defaultdict(int)
    for k, (tree, bits) in enumerate(zip(trees, small, strict=True)):
        for node, left in bits.tests:
            if tree["feature"][node] == feature:
                passed[tree["threshold"][node]] |= left << 8 * k
    thresholds = sorted(passed)
    masks = [full]
    for threshold in thresholds:
        masks.append(masks[-1] & ~passed[threshold])
    return tuple(thresholds), tuple(masks)


def _root(tree: Mapping[str, Sequence[Any]], places: Sequence[int]) -> _Node:
    """Find the root of a tree given as lists."""
    nodes: list[_Node] = list(tree["value"])
    for k in range(len(nodes) - 1, -1, -1):
        if tree["feature"][k] >= 0:
            nodes[k] = (
                places[tree["feature"][k]],
                tree["threshold"][k],
                nodes[tree["left"][k]],
                nodes[tree["right"][k]],
            )
    return nodes[0]
