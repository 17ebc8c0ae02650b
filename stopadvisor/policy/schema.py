"""What a policy holds: every field with its type and range, written down once.

Checked by hand-written combinators, not jsonschema: the relations between fields (lengths,
thresholds, trees) need code anyway, and a gateway that loads a policy needs nothing installed.
This module knows no files, and decides nothing about a question.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any

from stopadvisor.answers.normal_form import TASKS
from stopadvisor.errors import PolicyError
from stopadvisor.policy.values import shown
from stopadvisor.rules.families import FAMILIES, SCALAR_FAMILIES, display_threshold
from stopadvisor.rules.features import FEATURES, TEXT_FEATURES

__all__ = [
    "FIELDS",
    "MIXED_TASKS",
    "POLICY_SCHEMA",
    "check_fields",
    "check_schema",
    "reads_logprobs",
]

POLICY_SCHEMA = 1
"""Version of the fields below; a change of their meaning raises it."""

MIXED_TASKS = "mixed"
"""`task` of a policy whose questions each bring their own."""

_MAX_CHECKPOINTS = 1024
_MAX_TREES = 500
_MAX_TREE_DEPTH = 32
_MAX_GOLDEN = 32
_MAX_GOLDEN_STEPS = 4096

Check = Callable[[Any, str], None]


# --- Combinators ----------------------------------------------------------------------------------


def _expect(ok: bool, name: str, what: str, value: Any) -> None:
    if not ok:
        raise PolicyError(f"field '{name}': expected {what}, got {shown(value)}")


def _where(what: str, holds: Callable[[Any], bool]) -> Check:
    return lambda value, name: _expect(holds(value), name, what, value)


def _one_of(*options: str | None) -> Check:
    what = "one of " + ", ".join("null" if o is None else repr(o) for o in options)
    return _where(what, lambda value: type(value) in (str, type(None)) and value in options)


def _matching(pattern: str, what: str) -> Check:
    return _where(what, lambda value: type(value) is str and bool(re.fullmatch(pattern, value)))


def _whole(at_least: int) -> Check:
    return _where(f"an integer >= {at_least}", lambda v: type(v) is int and v >= at_least)


def _nullable(check: Check) -> Check:
    def run(value: Any, name: str) -> None:
        if value is not None:
            check(value, name)

    return run


def _list_of(check: Check, most: int | None = None) -> Check:
    def run(value: Any, name: str) -> None:
        _expect(type(value) is list, name, "a list", value)
        if most is not None:
            _expect(len(value) <= most, name, f"at most {most} entries", len(value))
        for index, item in enumerate(value):
            check(item, f"{name}[{index}]")

    return run


def _map_of(check: Check) -> Check:
    def run(value: Any, name: str) -> None:
        _expect(type(value) is dict, name, "a dict", value)
        for key, item in value.items():
            check(item, f"{name}.{shown(key)[1:-1]}")

    return run


def _record(required: Mapping[str, Check], *, more: bool = False) -> Check:
    """Check a dict with these keys; `more` allows others, of any plain value."""

    def run(value: Any, name: str) -> None:
        _expect(type(value) is dict, name, "a dict", value)
        for key, check in required.items():
            _expect(key in value, name, f"a dict with key '{key}'", value)
            check(value[key], f"{name}.{key}")
        if not more:
            unknown = [key for key in value if key not in required]
            _expect(not unknown, name, f"only the keys {', '.join(required)}", unknown)

    return run


def _is_timestamp(value: Any) -> bool:
    try:
        return type(value) is str and bool(datetime.fromisoformat(value))
    except ValueError:
        return False


_TEXT = _where("a string", lambda value: type(value) is str)
_NAME = _where("a non-empty string", lambda value: type(value) is str and bool(value))
_REAL = _where("a float", lambda value: type(value) is float)
_NUMBER = _where("a number", lambda value: type(value) in (int, float))
_FLAG = _where("true or false", lambda value: type(value) is bool)
_SHARE = _where(
    "a float strictly between 0 and 1", lambda value: type(value) is float and 0 < value < 1
)
_ANY_DICT = _where("a dict", lambda value: type(value) is dict)
_SHA256 = _matching("[0-9a-f]{64}", "a SHA-256 in 64 hex digits")
_IDS = _list_of(_whole(0))
_TEXT_AND_IDS = _record({"text": _TEXT, "ids": _nullable(_IDS)})


def _prompt_template(value: Any, name: str) -> None:
    if type(value) is dict:
        _map_of(_TEXT)(value, name)
    else:
        _nullable(_where("a string, a dict of strings by task, or null", _is_text))(value, name)


def _is_text(value: Any) -> bool:
    return type(value) is str


# --- The fields -----------------------------------------------------------------------------------

FIELDS: dict[str, Check] = {
    "schema": _whole(1),
    "kind": _one_of("stop", "full-budget"),
    "family": _one_of(*FAMILIES, None),
    "features": _list_of(_one_of(*FEATURES)),
    "mean": _list_of(_REAL),
    "scale": _list_of(_where("a float > 0", lambda v: type(v) is float and v > 0)),
    "coef": _list_of(_REAL),
    "intercept": _nullable(_REAL),
    "threshold": _nullable(_REAL),
    "decision_threshold": _nullable(_REAL),
    "budgets": _list_of(_whole(0), most=_MAX_CHECKPOINTS),
    "probe": _nullable(
        _record(
            {
                "closer": _TEXT_AND_IDS,
                "cue": _TEXT_AND_IDS,
                "cap": _whole(1),
                "stop_ids": _nullable(_IDS),
            }
        )
    ),
    "on_stop": _one_of("probe", "answer"),
    "markers": _record({"phrases": _list_of(_NAME), "rule": _NAME}),
    "task": _one_of(*TASKS, MIXED_TASKS),
    "normalizer": _NAME,
    "grader": _NAME,
    "entropy_source": _matching(
        "full|none|top-k:[1-9][0-9]{0,6}", "'full', 'top-k:K' with K >= 1, or 'none'"
    ),
    "prompt_template": _prompt_template,
    "chat_template_kwargs": _ANY_DICT,
    "sampling": _ANY_DICT,
    "max_think": _nullable(_whole(1)),
    "model": _nullable(
        _record(
            {
                "name": _NAME,
                "revision": _nullable(_NAME),
                "tokenizer_sha256": _nullable(_NAME),
                "template_sha256": _nullable(_NAME),
            }
        )
    ),
    "engine": _nullable(
        _record(
            {
                "name": _NAME,
                "version": _nullable(_NAME),
                "dtype": _nullable(_NAME),
                "quantization": _nullable(_NAME),
                "attention": _nullable(_NAME),
                "device": _nullable(_NAME),
            }
        )
    ),
    "serving": _one_of("kv-fork", "prefix-cache", "black-box", "overlap"),
    "certificate": _nullable(
        _record(
            {
                "alpha": _SHARE,
                "delta": _SHARE,
                "bound": _NAME,
                "multiplicity": _NAME,
                "n": _whole(1),
                "losses": _whole(0),
                "upper": _where(
                    "a float from 0 to 1", lambda value: type(value) is float and 0 <= value <= 1
                ),
                "reference": _one_of("natural", "last-checkpoint"),
                "looks": _whole(1),
            },
            more=True,
        )
    ),
    "profile": _nullable(_ANY_DICT),
    "expected": _nullable(_ANY_DICT),
    "split": _nullable(
        _record(
            {
                "seed": _where("an integer", lambda value: type(value) is int),
                "fit": _list_of(_NAME),
                "calibration": _list_of(_NAME),
                "test": _list_of(_NAME),
            },
            more=True,
        )
    ),
    "workload_sha256": _nullable(_SHA256),
    "versions": _map_of(_nullable(_TEXT)),
    "created": _where("a date and time in ISO 8601", _is_timestamp),
    "order": _list_of(_REAL),
    "calibration_features": _nullable(_list_of(_list_of(_REAL))),
    "golden": _list_of(
        _record(
            {
                "task": _one_of(*TASKS),
                "steps": _list_of(
                    _record(
                        {
                            "answer": _TEXT,
                            "normalized": _TEXT,
                            "mean_logprob": _REAL,
                            "mean_entropy": _REAL,
                            "markers": _REAL,
                            "think_tokens": _whole(0),
                        }
                    )
                ),
                "decisions": _list_of(_record({"stop": _FLAG, "score": _REAL})),
            }
        ),
        most=_MAX_GOLDEN,
    ),
    "digest": _SHA256,
}
"""Every key of a policy, in the order in which it is written.  `trees` comes on top, after
`intercept`, for the family `learned-boosted` and for no other."""

_TREE = _record(
    {
        "feature": _list_of(_whole(-1)),
        "threshold": _list_of(_REAL),
        "left": _list_of(_where("an integer", lambda value: type(value) is int)),
        "right": _list_of(_where("an integer", lambda value: type(value) is int)),
        "value": _list_of(_REAL),
    }
)


def check_schema(content: Mapping[str, Any]) -> None:
    """Refuse a policy of another schema number, before anything else is asked of it.

    Raises
    ------
    PolicyError
        No schema number, or one that this version does not read.
    """
    found = content.get("schema")
    if type(found) is not int or found < 1:
        raise PolicyError(f"field 'schema': expected an integer >= 1, got {shown(found)}")
    if found > POLICY_SCHEMA:
        raise PolicyError(
            f"written by a newer StopAdvisor (policy schema {found}; this version reads "
            f"{POLICY_SCHEMA}): upgrade with pip install -U stopadvisor"
        )


def check_fields(content: Mapping[str, Any]) -> None:
    """Hold every field to its type and range, and the fields to each other.

    Raises
    ------
    PolicyError
        Names the first field at fault, what is required, and what was found.
    """
    boosted = content.get("family") == "learned-boosted"
    fields = {**FIELDS, "trees": _list_of(_TREE, most=_MAX_TREES)} if boosted else FIELDS
    for key in fields:
        if key not in content:
            raise PolicyError(f"field '{key}' is missing")
    for key in content:
        if key not in fields:
            raise PolicyError(f"field {shown(key)} is unknown")
    for key, check in fields.items():
        check(content[key], key)
    _check_budgets(content["budgets"])
    if content["model"] is not None:
        for key in ("probe", "engine", "max_think", "split"):
            if content[key] is None:
                raise PolicyError(f"field '{key}': required when a model is named, got null")
    certificate = content["certificate"]
    if certificate is not None and certificate["losses"] > certificate["n"]:
        raise PolicyError(
            "field 'certificate.losses': expected at most certificate.n "
            f"({certificate['n']}), got {certificate['losses']}"
        )
    if content["kind"] == "full-budget":
        _check_full_budget(content)
    else:
        _check_stop(content)


def _check_budgets(budgets: list[int]) -> None:
    for before, after in pairwise(budgets):
        _expect(before < after, "budgets", "strictly increasing integers", budgets)


def _check_full_budget(content: Mapping[str, Any]) -> None:
    for key in ("family", "intercept", "threshold", "decision_threshold"):
        _expect(content[key] is None, key, "null for kind 'full-budget'", content[key])
    for key in ("features", "mean", "scale", "coef", "budgets", "order", "golden"):
        _expect(not content[key], key, "an empty list for kind 'full-budget'", content[key])


def _check_stop(content: Mapping[str, Any]) -> None:
    family = content["family"]
    for key in ("family", "threshold", "decision_threshold", "certificate"):
        _expect(content[key] is not None, key, "a value for kind 'stop'", None)
    _expect(bool(content["budgets"]), "budgets", "at least one budget for kind 'stop'", [])
    _check_threshold(family, content["threshold"], content["decision_threshold"])
    if content["order"]:
        _check_order(content["order"], content["decision_threshold"])
    if family in SCALAR_FAMILIES:
        for key in ("features", "mean", "scale", "coef"):
            _expect(not content[key], key, f"an empty list for family '{family}'", content[key])
        _expect(content["intercept"] is None, "intercept", "null", content["intercept"])
    else:
        _check_learned(content)
    if content["entropy_source"] == "none" and reads_logprobs(content):
        raise PolicyError(
            f"field 'entropy_source': family '{family}' reads log-probabilities, got 'none'"
        )
    _check_golden(content)


def reads_logprobs(content: Mapping[str, Any]) -> bool:
    """Whether a policy's rule reads log-probability or entropy, and not answers alone.

    The entropy source of the probes matters to such a rule only.
    """
    scalar = content["family"] in ("confidence", "entropy", "confidence-leap")
    return scalar or not set(content["features"]) <= set(TEXT_FEATURES)


def _check_threshold(family: str, threshold: float, linear: float) -> None:
    try:
        expected = display_threshold(family, linear)
    except OverflowError:
        expected = math.inf
    if not math.isclose(threshold, expected, rel_tol=1e-9, abs_tol=1e-12):
        raise PolicyError(
            f"field 'threshold': expected {expected!r}, which family '{family}' gives for "
            f"decision_threshold {linear!r}, got {threshold!r}"
        )


def _check_order(order: list[float], linear: float) -> None:
    descending = all(a > b for a, b in pairwise(order))
    _expect(descending, "order", "strictly descending thresholds", order)
    _expect(linear in order, "order", f"to hold decision_threshold {linear!r}", order)


def _check_learned(content: Mapping[str, Any]) -> None:
    family, features = content["family"], content["features"]
    _expect(bool(features), "features", f"at least one for family '{family}'", features)
    _expect(len(set(features)) == len(features), "features", "each at most once", features)
    if family == "learned-text":
        for name in features:
            _expect(name in TEXT_FEATURES, "features", f"only {', '.join(TEXT_FEATURES)}", name)
    _expect(content["intercept"] is not None, "intercept", f"a float for '{family}'", None)
    if family == "learned-boosted":
        for key in ("mean", "scale", "coef"):
            _expect(not content[key], key, f"an empty list for family '{family}'", content[key])
        _expect(bool(content["trees"]), "trees", "at least one tree", content["trees"])
        for index, tree in enumerate(content["trees"]):
            _check_tree(tree, f"trees[{index}]", len(features))
        return
    for key in ("mean", "scale", "coef"):
        what = f"{len(features)} numbers, one per feature"
        _expect(len(content[key]) == len(features), key, what, len(content[key]))


def _check_tree(tree: Mapping[str, list[Any]], name: str, n_features: int) -> None:
    n_nodes = len(tree["feature"])
    for key, values in tree.items():
        _expect(n_nodes == len(values) >= 1, f"{name}.{key}", f"{n_nodes} nodes", len(values))
    depth = [0] * n_nodes
    for node, feature in enumerate(tree["feature"]):
        if feature < 0:
            continue
        _expect(feature < n_features, f"{name}.feature", f"below {n_features}", feature)
        for side in ("left", "right"):
            child = tree[side][node]
            # Children behind their parent: no walk down the tree can go in circles.
            what = f"a child of node {node} between {node + 1} and {n_nodes - 1}"
            _expect(node < child < n_nodes, f"{name}.{side}", what, child)
            depth[child] = max(depth[child], depth[node] + 1)
    _expect(max(depth) <= _MAX_TREE_DEPTH, name, f"depth <= {_MAX_TREE_DEPTH}", max(depth))


def _check_golden(content: Mapping[str, Any]) -> None:
    golden = content["golden"]
    _expect(bool(golden), "golden", "at least one trajectory for kind 'stop'", golden)
    total = 0
    for index, entry in enumerate(golden):
        n_steps = len(entry["steps"])
        total += n_steps
        _expect(
            1 <= n_steps == len(entry["decisions"]) <= len(content["budgets"]),
            f"golden[{index}]",
            f"1 to {len(content['budgets'])} steps and as many decisions",
            [n_steps, len(entry["decisions"])],
        )
    _expect(total <= _MAX_GOLDEN_STEPS, "golden", f"at most {_MAX_GOLDEN_STEPS} steps", total)
