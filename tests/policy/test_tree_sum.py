"""A boosted policy's trees at one step: the sum that a walk down each gives, to the last bit."""

from __future__ import annotations

import random
from typing import Any

import pytest

from stopadvisor.policy.tree_sum import TreeSum

PLACES = (4, 1, 6)
"""Of the features that the trees number, among the values of a step."""


def grown(rng: random.Random, n_leaves: int) -> dict[str, Any]:
    """A tree of any shape with so many leaves, its children after their parents."""
    tree: dict[str, list[Any]] = {
        "feature": [-1],
        "threshold": [0.0],
        "left": [0],
        "right": [0],
        "value": [rng.gauss(0, 1)],
    }
    for _ in range(n_leaves - 1):
        leaf = rng.choice([k for k, feature in enumerate(tree["feature"]) if feature < 0])
        tree["feature"][leaf] = rng.randrange(len(PLACES))
        tree["threshold"][leaf] = rng.choice((-1.0, -0.0, 0.25, 1.0))
        for side in ("left", "right"):
            tree[side][leaf] = len(tree["feature"])
            for key in tree:
                tree[key].append(-1 if key == "feature" else 0)
            tree["value"][-1] = rng.gauss(0, 1)
    return tree


def walked(trees: list[dict[str, Any]], score: float, values: list[float]) -> float:
    for tree in trees:
        node = 0
        while (feature := tree["feature"][node]) >= 0:
            below = values[PLACES[feature]] <= tree["threshold"][node]
            node = tree["left" if below else "right"][node]
        score = score + tree["value"][node]
    return score


@pytest.mark.parametrize("most", [8, 12], ids=["bits", "one too large for a byte"])
def test_the_sum_is_that_of_walks_to_the_last_bit(most: int) -> None:
    rng = random.Random(most)
    trees = [grown(rng, n_leaves) for n_leaves in (1, 2, 5, 8, most, 3, 8)]
    found = TreeSum(trees, PLACES)
    for _ in range(300):
        values = [rng.choice((-1.0, 0.0, -0.0, 0.25, 1.0, rng.gauss(0, 1))) for _ in range(7)]
        assert found.score(0.1, values) == walked(trees, 0.1, values)


def test_leaves_that_two_nodes_share_count_twice() -> None:
    """A file may say so: nine ways down to five leaves are no byte."""
    shared: dict[str, Any] = {
        "feature": [0] * 8 + [-1],
        "threshold": [float(k) for k in range(8)] + [0.0],
        "left": [8] * 8 + [0],
        "right": [*range(1, 9), 0],
        "value": [0.0] * 8 + [0.5],
    }
    assert TreeSum([shared], PLACES).score(1.0, [3.5] * 7) == 1.5
