"""Types and ranges of a policy's fields, and checks between them."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.consistency import check_trigger
from stopadvisor.policy.frozen import load_policy
from stopadvisor.rules.features import FEATURES
from tests.policy_content import (
    anywhere_content,
    built,
    certificate_content,
    example_content,
    example_terms,
    family_content,
    file_bytes,
    full_budget_content,
)

built_example = cache(lambda: built(example_content()))

BAD_FIELDS: list[tuple[str, Any, str]] = [
    ("kind", "go", "one of 'stop', 'full-budget'"),
    ("family", "puma", "one of 'learned'"),
    ("trigger", None, "a value for kind 'stop'"),
    ("trigger", {"kind": "grid"}, "trigger.every' is missing"),
    ("features", "budget_fraction", "a list"),
    ("features", [*FEATURES[:7], "ended"], "one of 'budget_fraction'"),
    ("features", [*FEATURES[:7], FEATURES[0]], "at most once"),
    ("features", [], "at least one"),
    ("mean", [0.0] * 7, "8 numbers"),
    ("mean", [0.0] * 7 + ["0"], "mean[7]': expected a float"),
    ("mean", [0.0] * 7 + [math.nan], "finite"),
    ("scale", [1.0] * 7 + [0.0], "a float > 0"),
    ("scale", [1.0] * 7 + [math.inf], "finite"),
    ("coef", [True] * 8, "a float"),
    ("coef", [1.0] * 9, "8 numbers"),
    ("intercept", None, "a value for family"),
    ("threshold", 0.7, "gives for decision_threshold 1.375"),
    ("threshold", None, "a value for kind 'stop'"),
    ("decision_threshold", 1.375001, "gives for decision_threshold"),
    ("decision_threshold", -math.inf, "finite"),
    ("budgets", [], "at least one budget"),
    ("budgets", [0, 16, 16, 64], "strictly increasing"),
    ("budgets", [-1, 16], "integer from 0 to 16777216"),
    ("budgets", [False, 16], "integer from 0"),
    ("budgets", list(range(2000)), "at most 1024"),
    ("budgets", [2**62], "integer from 0 to 16777216"),
    ("probe", None, "a value when a model is named"),
    ("probe", {"closer": "x"}, "probe.closer': expected a dict"),
    ("on_stop", "stop", "one of 'probe', 'answer'"),
    ("markers", {"phrases": ["wait"], "rule": "r", "x": 1}, "markers.x' is unknown"),
    ("task", "essay", "one of 'math'"),
    ("grader", "", "non-empty string"),
    ("chat_template_kwargs", {"chat_template": "{{ 1 }}"}, "'chat_template' is reserved"),
    ("chat_template_kwargs", {"return_dict": False}, "'return_dict' is reserved"),
    ("chat_template_kwargs", {"x": 1, "tokenize": True}, "'tokenize' is reserved"),
    ("entropy_source", "top-k", "'top-k:K'"),
    ("entropy_source", "top-k:0", "'top-k:K'"),
    ("entropy_source", "none", "reads log-probabilities"),
    ("prompt_template", 3, "a string, a dict"),
    ("chat_template_kwargs", None, "a dict"),
    ("served", {"stop": [None], "prompt_tokens": []}, "served.stop[0]"),
    ("max_think", 1, "no position beyond max_think (1), got 128"),
    ("max_think", 2**62, "integer from 1 to"),
    ("max_think", None, "a value when a model is named"),
    ("engine", None, "a value when a model is named"),
    ("engine", {"name": 1}, "non-empty string"),
    ("serving", "cloud", "one of 'vllm'"),
    ("certificate", None, "a value for kind 'stop'"),
    ("split", None, "a value when a model is named"),
    ("split", example_content()["split"] | {"fit": [1]}, "split.fit[0]"),
    ("workload_sha256", "abc", "64 hex digits"),
    ("versions", {"numpy": "2\nCertified."}, "a non-empty string on one line"),
    ("sampling", {"greedy": False}, "sampling.temperature' is missing"),
    ("sampling", {"greedy": 1, "temperature": None, "seed": 0}, "sampling.greedy': expected true"),
    ("sampling", {"greedy": False, "temperature": "hot"}, "temperature': expected a number > 0"),
    ("sampling", {"greedy": False, "temperature": 0.0, "seed": 0}, "a number > 0"),
    ("sampling", None, "a value when a model is named"),
    ("created", "yesterday", "ISO 8601"),
]


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    BAD_FIELDS,
    ids=[f"{field}-{k}" for k, (field, _, _) in enumerate(BAD_FIELDS)],
)
def test_wrong_fields_are_named(tmp_path: Path, field: str, value: Any, expected: str) -> None:
    with pytest.raises(PolicyError) as caught:
        built(example_content(**{field: value}))
    message = str(caught.value)
    assert field in message
    assert expected in message
    assert "\n" not in message
    # Loading a file with a right digest gives the same message.
    finite = not any(isinstance(v, float) and not math.isfinite(v) for v in np.atleast_1d(value))
    if finite:
        path = tmp_path / "policy.joblib"
        path.write_bytes(file_bytes(built_example() | {field: value}, "joblib"))
        with pytest.raises(PolicyError) as loaded:
            load_policy(path)
        assert str(loaded.value) == f"{path}: {message}"


def _change(**changes: Any) -> dict[str, Any]:
    return example_content(certificate=certificate_content(**changes))


def _trigger(name: str, **changes: Any) -> dict[str, Any]:
    content = anywhere_content(name)
    content["trigger"] |= changes
    return content


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (example_content() | {"x": 1}, "'x' is unknown"),
        ({k: v for k, v in example_content().items() if k != "serving"}, "'serving' is missing"),
        (example_content(trees=[]), "'trees': expected null"),
        (_change(alpha=0.0), "strictly between"),
        (_change(delta=1), "strictly between"),
        (_change(losses=81), "at most certificate.n"),
        (_change(upper=1.5), "from 0 to 1"),
        (_change(reference="gold"), "one of 'natural'"),
        (_change(differs_upper=5 / 80), "above 0.0625"),
        (_change(looks=0), "integer from 1"),
        (family_content("confidence") | {"threshold": -0.105}, "gives"),
        (family_content("confidence") | {"decision_threshold": 1e6}, "inf"),
        (family_content("entropy") | {"coef": [1.0]}, "empty list"),
        (family_content("entropy") | {"intercept": 0.0}, "null"),
        (family_content("confidence") | {"entropy_source": "none"}, "reads"),
        (full_budget_content() | {"budgets": [0]}, "empty list"),
        (full_budget_content() | {"threshold": 0.5}, "null"),
        (full_budget_content() | {"calibration_features": []}, "null"),
        (example_content(normalizer="0"), "answer normaliser '0'"),
        (example_content(order=[1.375, 1.375]), "strictly descending"),
        (example_content(order=[2.0, 1.0]), "to hold decision_threshold"),
        # Where it probes.
        (example_content(budgets=[4097]), "no position beyond max_think (4096), got 4097"),
        (
            anywhere_content("stride", budgets=[16, 32]),
            "'budgets': expected an empty list for a trigger of kind 'stride'",
        ),
        (_trigger("stride", every=None), "trigger.every"),
        (_trigger("stride", every=0), "trigger.every"),
        (_trigger("stride", min_gap=3), "null for kind 'stride'"),
        (_trigger("stride", markers=[[1]]), "an empty list for"),
        (_trigger("stride", first=113), "at most the cap 112"),
        (_trigger("stride", first=None, every=113), "at most the cap 112"),
        (_trigger("stride", every=1, cap=65537), "<= 65536 strides"),
        (_trigger("stride-stop", cap=120), "'trigger.cap': expected stop_at"),
        (_trigger("grid-stop", stop_at=96), "the last budget 128"),
        (_trigger("grid-stop", cap=128), "null for kind 'grid'"),
        (_trigger("marker", min_gap=4097), "no position beyond max_think (4096), got 4097"),
        (_trigger("marker", markers=[[1], []]), "markers[1]"),
        (_trigger("marker", markers=["Wait"]), "markers[0]"),
        (_trigger("marker", markers=[[1]] * 1025), "1024"),
        (_trigger("marker", max_probes=None), "max_probes"),
        (_trigger("marker", every=11), "null for kind 'marker'"),
        (_trigger("marker", kind="wait"), "one of 'grid'"),
        (_trigger("marker", kind="none"), "trigger.stop_at"),
        (
            anywhere_content("stride") | {"features": list(FEATURES)},
            "no 'budget_fraction' where the trigger is no grid",
        ),
        (
            example_content()
            | {"trigger": family_content("fixed-budget")["trigger"], "budgets": []},
            "'none' for family 'fixed-budget' and for no other",
        ),
        (
            family_content("fixed-budget")
            | {key: anywhere_content("stride")[key] for key in ("trigger", "budgets")},
            "'none' for family 'fixed-budget'",
        ),
        (
            family_content("fixed-budget") | {"threshold": 64.0, "decision_threshold": 64.0},
            "trigger.stop_at (96)",
        ),
        (
            full_budget_content() | {"trigger": anywhere_content("stride")["trigger"]},
            "null for kind 'full-budget'",
        ),
        (
            anywhere_content("marker", "deer") | {"entropy_source": "none"},
            "reads log-probabilities",
        ),
        (anywhere_content("marker") | {"entropy_source": "none"}, "reads log-probabilities"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fields_at_odds_are_refused(content: dict[str, Any], expected: str) -> None:
    with pytest.raises(PolicyError) as caught:
        built(content)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("stride", {"every": 256, "cap": 65536 * 256}),
        ("stride", {"first": 112}),
        ("stride", {"first": 0, "cap": 0}),
        ("marker", {"markers": [[1]] * 1024}),
        ("marker", {"markers": [[0], [7, 0]]}),
        ("marker", {"min_gap": 1, "max_probes": 1, "max_markers": 1}),
    ],
    ids=["strides", "first at the cap", "all at 0", "markers", "first token id", "one probe"],
)
def test_limits_of_a_trigger_may_be_reached(name: str, changes: dict[str, Any]) -> None:
    content = _trigger(name, **changes) | {"max_think": None}
    check_trigger(example_terms(**content))


def test_limits_of_one_field_by_another_may_be_reached() -> None:
    built(example_content(max_think=128))  # its last budget
    built(_change(alpha_over_full_accuracy=0.15))  # nothing was wrong


def test_a_rule_without_log_probabilities_needs_none() -> None:
    content = anywhere_content("marker", entropy_source="none")
    kept = [k for k, name in enumerate(content["features"]) if name != "answer_log_odds"]
    for key in ("features", "mean", "scale", "coef"):
        content[key] = [content[key][k] for k in kept]
    assert built(content)["entropy_source"] == "none"
