"""What replaying a policy's golden decisions may cost, counted before anything is replayed.

The numbers that a policy may hold multiply there: texts with the rules that read them, trees with
their depth and with the steps.  Knows a checked content's fields, and replays nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stopadvisor.errors import PolicyError

__all__ = ["MAX_GOLDEN_TEXT", "MAX_TREE_STEPS", "check_replay_cost"]

MAX_GOLDEN_TEXT = 65_536
"""Most characters in all golden answers; those made here have a few hundred."""
MAX_TREE_STEPS = 1_000_000
"""Most nodes visited by all golden steps; the policies made here visit 150,000 at most."""


def check_replay_cost(content: Mapping[str, Any]) -> None:
    """Refuse a policy whose golden decisions would take long to replay.

    Raises
    ------
    PolicyError
        Too much text, too many tree nodes to visit, or trees that share their branches.
    """
    steps = [step for entry in content["golden"] for step in entry["steps"]]
    text = sum(len(step["answer"]) for step in steps)
    if text > MAX_GOLDEN_TEXT:
        raise PolicyError(
            f"field 'golden': expected at most {MAX_GOLDEN_TEXT} characters of answers, got {text}"
        )
    depths = sum(_depth(tree, index) for index, tree in enumerate(content["trees"] or ()))
    if depths * len(steps) > MAX_TREE_STEPS:
        raise PolicyError(
            f"field 'golden': expected at most {MAX_TREE_STEPS} steps through trees, "
            f"got {len(steps)} steps through trees of depth {depths} in all"
        )


def _depth(tree: Mapping[str, list[Any]], index: int) -> int:
    """Edges from the root to the deepest leaf; children stand behind their parents."""
    depth: list[int | None] = [None] * len(tree["feature"])
    depth[0] = deepest = 0
    for node, feature in enumerate(tree["feature"]):
        level = depth[node]
        if feature < 0 or level is None:
            continue
        deepest = max(deepest, level + 1)
        for side in ("left", "right"):
            child = tree[side][node]
            if depth[child] is not None and tree["feature"][child] >= 0:  # leaves may be shared
                raise PolicyError(f"field 'trees[{index}].{side}': node {child} has two parents")
            depth[child] = level + 1
    return deepest
