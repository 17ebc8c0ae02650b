"""Small trees as bits: a bit for each leaf, so that a test strikes out many leaves at once.

For whole tables and for the stepper, which has to give the same scores.  Knows no features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["PER_UNIT", "LeafBits", "leaf_bits", "sums_exactly"]

PER_UNIT = 2.0**36
"""Values that are fitted are whole multiples of one over this: a float sums them exactly."""

_BITS = 8
"""Leaves that fit into one byte."""
_LOWEST = tuple((bits & -bits).bit_length() for bits in range(1 << _BITS))
"""The place of the lowest bit of each byte, counted from 1."""


class LeafBits(NamedTuple):
    """A tree of at most eight leaves, one bit each: the leftmost leaf has the lowest.

    A test that sends a row right strikes out the leaves under its left branch; the leftmost leaf
    that remains is the one a walk would reach.

    References
    ----------
    Lucchese et al. (2015), "QuickScorer", SIGIR.
    """

    tests: tuple[tuple[int, int], ...]
    """Inner nodes, each with the bits of the leaves under its left branch."""
    values: tuple[float, ...]
    """What the tree gives, by the bits of the leaves that remain."""


def leaf_bits(
    feature: Sequence[int], left: Sequence[int], right: Sequence[int], value: Sequence[float]
) -> LeafBits | None:
    """Number a tree's leaves by bits; None where there are more than a byte has."""
    leaves: list[float] = []
    tests: list[tuple[int, int]] = []

    def visit(node: int) -> int:
        if len(leaves) > _BITS:
            return 0
        if feature[node] < 0:
            leaves.append(value[node])
            return 1 << (len(leaves) - 1)
        below = visit(left[node])
        tests.append((node, below))
        return below | visit(right[node])

    every = visit(0)
    if len(leaves) > _BITS:
        return None
    leaves.insert(0, 0.0)  # none remains: never the case
    return LeafBits(tuple(tests), tuple(leaves[k] for k in _LOWEST[: every + 1]))


def sums_exactly(*choices: Sequence[float]) -> bool:
    """Whether a sum of one value of each sequence loses nothing, whatever the order."""
    most = sum(max(abs(value) for value in values) for values in choices)
    return most * PER_UNIT < 2.0**53 and all(
        (value * PER_UNIT).is_integer() for values in choices for value in set(values)
    )
