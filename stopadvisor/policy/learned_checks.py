"""What must hold between the fields of a learned rule: features, their scales, and trees.

Knows fields whose single values have been checked already (`schema`), and no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stopadvisor.errors import PolicyError
from stopadvisor.policy.checks import expect
from stopadvisor.rules.features import OPEN_FEATURES, TEXT_FEATURES

__all__ = ["check_learned"]

_MAX_TREE_DEPTH = 32


def check_learned(content: Mapping[str, Any]) -> None:
    """Check that features, scales and trees of a learned rule fit together."""
    family, features = content["family"], content["features"]
    expect(bool(features), "features", f"at least one for family '{family}'", features)
    expect(len(set(features)) == len(features), "features", "each at most once", features)
    open_cue = (content["probe"] or {}).get("open_cue", False)
    if not open_cue and not set(content["features"]).isdisjoint(OPEN_FEATURES):
        raise PolicyError(
            f"field 'probe.open_cue': expected true where {', '.join(OPEN_FEATURES)} is read"
        )
    if family == "learned-text":
        for name in features:
            expect(name in TEXT_FEATURES, "features", f"only {', '.join(TEXT_FEATURES)}", name)
    expect(content["intercept"] is not None, "intercept", f"a float for '{family}'", None)
    if family == "learned-boosted":
        for key in ("mean", "scale", "coef"):
            expect(not content[key], key, f"an empty list for family '{family}'", content[key])
        expect(bool(content["trees"]), "trees", "at least one tree", content["trees"])
        for index, tree in enumerate(content["trees"]):
            _check_tree(tree, f"trees[{index}]", len(features))
        return
    expect(content["trees"] is None, "trees", f"null for family '{family}'", content["trees"])
    for key in ("mean", "scale", "coef"):
        what = f"{len(features)} numbers, one per feature"
        expect(len(content[key]) == len(features), key, what, len(content[key]))


def _check_tree(tree: Mapping[str, list[Any]], name: str, n_features: int) -> None:
    n_nodes = len(tree["feature"])
    for key, values in tree.items():
        expect(n_nodes == len(values) >= 1, f"{name}.{key}", f"{n_nodes} nodes", len(values))
    depth = [0] * n_nodes
    for node, feature in enumerate(tree["feature"]):
        if feature < 0:
            continue
        expect(feature < n_features, f"{name}.feature", f"below {n_features}", feature)
        for side in ("left", "right"):
            child = tree[side][node]
            # Children after their parent: no walk down the tree can go in circles.
            what = f"a child of node {node} between {node + 1} and {n_nodes - 1}"
            expect(node < child < n_nodes, f"{name}.{side}", what, child)
            depth[child] = max(depth[child], depth[node] + 1)
    expect(max(depth) <= _MAX_TREE_DEPTH, name, f"depth <= {_MAX_TREE_DEPTH}", max(depth))
