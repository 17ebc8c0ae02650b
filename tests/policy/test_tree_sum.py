"""A boosted policy's trees at one step: the sum that a walk down each gives, to the last bit."""

from __future__ import annotations

import random
from typing import Any

import pytest

from stopadvisor.policy import tree_sum
from stopadvisor.policy.tree_sum import TreeSum
from stopadvisor.rules.leaf_bits import sums_exactly

PLACES = (4, 1, 6)
"""Of the features that the trees number, among the values of a step."""


def grown(rng: random.Random, n_leaves: int, per_unit: float) -> dict[str, Any]:
    """A tree of any shape with so many leaves, its children after their parents."""

    def value() -> float:
        return round(rng.gauss(0, 1) * per_unit) / per_unit

    tree: dict[str, list[Any]] = {
        "feature": [-1],
        "threshold": [0.0],
        "left": [0],
        "right": [0],
        "value": [value()],
    }
    for _ in range(n_leaves - 1):
        leaf = rng.choice([k for k, feature in enumerate(tree["feature"]) if feature < 0])
        tree["feature"][leaf] = rng.randrange(len(PLACES))
        tree["threshold"][leaf] = rng.choice((-1.0, -0.0, 0.25, 1.0))
        for side in ("left", "right"):
            tree[side][leaf] = len(tree["feature"])
            for key in tree:
                tree[key].append(-1 if key == "feature" else 0)
            tree["value"][-1] = value()
    return tree


def walked(trees: list[dict[str, Any]], score: float, values: list[float]) -> float:
    for tree in trees:
        node = 0
        while (feature := tree["feature"][node]) >= 0:
            below = values[PLACES[feature]] <= tree["threshold"][node]
            node = tree["left" if below else "right"][node]
        score = score + tree["value"][node]
    return score


@pytest.mark.parametrize(
    ("most", "per_unit"),
    [(8, 2.0**36), (8, 2.0**60), (12, 2.0**36)],
    ids=["looked up", "added in order", "one too large for a byte"],
)
def test_the_sum_is_that_of_walks_to_the_last_bit(most: int, per_unit: float) -> None:
    rng = random.Random(most)
    leaves = (1, 2, 5, 8, most, 3, 8, 8, 4, 1, 7)
    trees = [grown(rng, n_leaves, per_unit) for n_leaves in leaves]
    found = TreeSum(trees, PLACES, 0.125)
    for _ in range(300):
        values = [rng.choice((-1.0, 0.0, -0.0, 0.25, 1.0, rng.gauss(0, 1))) for _ in range(7)]
        assert found.score(values) == walked(trees, 0.125, values)


@pytest.mark.parametrize(
    ("choices", "exact"),
    [
        (([0.5, -3.0], [2.0**-36]), True),
        (([2.0**-37], [1.0]), False),
        (([2.0**17 - 1.0], [0.5, 0.25]), True),
        (([2.0**17 - 1.0], [0.5, -1.0]), False),
        (([1e308], [1e308]), False),
    ],
)
def test_sums_are_exact_on_a_grid_and_within_53_bits(
    choices: tuple[list[float], ...], exact: bool
) -> None:
    assert sums_exactly(*choices) is exact


def test_no_more_sums_are_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_sum, "_MOST_SUMS", 4)
    rng = random.Random(0)
    trees = [grown(rng, 8, 2.0**36) for _ in range(16)]
    found = TreeSum(trees, PLACES, 0.0)
    for _ in range(100):
        values = [rng.gauss(0, 1) for _ in range(7)]
        assert found.score(values) == walked(trees, 0.0, values)
    assert [len(group) for group in found._groups] == [2, 2]


def test_leaves_that_two_nodes_share_count_twice() -> None:
    """A file may say so: nine ways down to five leaves are no byte."""
    shared: dict[str, Any] = {
        "feature": [0] * 8 + [-1],
        "threshold": [float(k) for k in range(8)] + [0.0],
        "left": [8] * 8 + [0],
        "right": [*range(1, 9), 0],
        "value": [0.0] * 8 + [0.5],
    }
    assert TreeSum([shared], PLACES, 1.0).score([3.5] * 7) == 1.5
