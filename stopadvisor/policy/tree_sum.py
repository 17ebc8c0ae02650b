"""A boosted policy's sum of trees: a search for each feature, not a comparison for each node.

All trees are looked at together, as one integer with a byte for each: its bits are the leaves that
can still be reached.  The values are added in the order of the trees, so that the score is that of
a walk down each of them to the last bit.  Knows no feature and no policy.

References
----------
Lucchese et al. (2015), "QuickScorer", SIGIR.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from stopadvisor.rules.leaf_bits import LeafBits, leaf_bits

__all__ = ["TreeSum"]

# A node is its value at a leaf, else (place, threshold, left, right): the fastest walk found.
_Node = Any


class TreeSum:
    """Trees given as lists, ready to be evaluated.

    Parameters
    ----------
    trees : sequence of dicts
        Of a checked policy: children stand after their parents.
    places : sequence of int
        Where each feature that the trees number stands among the values of a step.
    """

    __slots__ = ("_full", "_searches", "_values", "_walks")

    def __init__(self, trees: Sequence[Mapping[str, Sequence[Any]]], places: Sequence[int]) -> None:
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
        )

    def score(self, start: float, values: Sequence[float]) -> float:
        """Add the trees' values to `start`, the first tree's first."""
        if self._walks:
            for node in self._walks:
                while type(node) is tuple:
                    place, threshold, left, right = node
                    node = left if values[place] <= threshold else right
                start = start + node
            return start
        possible = self._full
        for place, thresholds, masks in self._searches:
            possible &= masks[bisect_left(thresholds, values[place])]
        tables = self._values
        for table, byte in zip(tables, possible.to_bytes(len(tables), "little")):  # noqa: B905
            start = start + table[byte]
        return start


def _search(
    trees: Sequence[Mapping[str, Sequence[Any]]], small: list[LeafBits], feature: int, full: int
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Every threshold of a feature, and the leaves that are left after passing so many of them."""
    tests = sorted(
        (tree["threshold"][node], left << 8 * k)
        for k, (tree, bits) in enumerate(zip(trees, small, strict=True))
        for node, left in bits.tests
        if tree["feature"][node] == feature
    )
    masks = [full]
    for _, left in tests:
        masks.append(masks[-1] & ~left)
    return tuple(threshold for threshold, _ in tests), tuple(masks)


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
