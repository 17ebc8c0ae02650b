"""Golden decisions: the examples in a policy, and that no other decisions replay."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import Policy, save_policy
from stopadvisor.probes.trigger import ListedTrigger, MarkerTrigger, stride
from stopadvisor.rules.families import FAMILIES, RUNG_FAMILIES, display_threshold
from tests.policy_content import (
    TRIGGERS,
    anywhere_content,
    built,
    checked,
    example_content,
    family_content,
    file_bytes,
    ladder_content,
    open_cue_content,
    trigger_content,
)

CONTENTS: dict[str, Callable[[], dict[str, Any]]] = {
    **{family: partial(family_content, family) for family in FAMILIES},
    "learned, through logarithms": partial(anywhere_content, "marker", "learned"),
    "learned, open cue": open_cue_content,
}
INEXACT = ("confidence-leap", "learned, through logarithms")
"""Their scores go through exp or log, whose last bit depends on the C library."""


@cache
def named(name: str) -> dict[str, Any]:
    return built(CONTENTS[name]())


def signed(content: dict[str, Any]) -> Policy:
    """A policy with a right digest, which anybody can compute."""
    return Policy.of(file_bytes(content))


def places(content: dict[str, Any]) -> list[tuple[int, int]]:
    """The first and the last decision of all, and one between them."""
    every = [(i, k) for i, e in enumerate(content["golden"]) for k in range(len(e["decisions"]))]
    return [every[0], every[len(every) // 2], every[-1]]


def up(score: float) -> float:
    return math.nextafter(score, math.inf)


def down(score: float) -> float:
    return math.nextafter(score, -math.inf)


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize(
    ("changed", "known"),
    [
        pytest.param(lambda score: score + 1e-9 * max(1.0, abs(score)), (), id="1e-9"),
        pytest.param(up, INEXACT, id="last bit up"),
        pytest.param(down, INEXACT, id="last bit down"),
    ],
)
def test_a_score_that_is_another_one_does_not_load(
    name: str, changed: Callable[[float], float], known: tuple[str, ...]
) -> None:
    """Even if the digest is right and the decision is the same."""
    for entry, step in places(named(name)):
        content = copy.deepcopy(named(name))
        decision = content["golden"][entry]["decisions"][step]
        decision["score"] = changed(decision["score"])
        if name in known:
            signed(content)
            continue
        with pytest.raises(PolicyError) as refused:
            signed(content)
        assert f"golden decision {entry} of {len(content['golden'])} does not replay" in str(
            refused.value
        )
        assert f"checkpoint {step} gives stop=" in str(refused.value)
        assert f"score {decision['score']!r} in the file" in str(refused.value)


def test_a_decision_that_is_another_one_does_not_load() -> None:
    """In the last step, after which no decision would be missing."""
    for stops in (True, False):
        content = copy.deepcopy(named("learned"))
        last = next(
            e["decisions"][-1] for e in content["golden"] if e["decisions"][-1]["stop"] == stops
        )
        last["stop"] = not stops
        with pytest.raises(PolicyError, match=f"gives stop={stops}, .* stop={not stops}, "):
            signed(content)


def test_every_step_has_its_decision() -> None:
    content = copy.deepcopy(named("learned"))
    content["golden"][1]["decisions"].pop()
    with pytest.raises(PolicyError, match=r"golden\[1\]': expected 1 to 6 steps and as many"):
        signed(content)


@pytest.mark.parametrize("family", ["confidence", "run-stability"])
def test_an_answer_that_normalises_to_something_else_does_not_load(family: str) -> None:
    """Even for a rule that reads no answers: the package that wrote it had other normal forms."""
    content = copy.deepcopy(named(family))
    step = content["golden"][0]["steps"][0]
    assert (step["answer"], step["normalized"]) == (" 7", "7")
    step["normalized"] = "8"
    with pytest.raises(PolicyError) as refused:
        signed(content)
    assert "golden decision 0 of" in str(refused.value)
    assert "answer ' 7' normalises to '7' here, to '8' in the file" in str(refused.value)
    for step in content["golden"][0]["steps"]:  # the same decisions, however it is written
        step.update(answer=" 8", normalized="8")
    assert signed(content).family == family


# --- What they show -------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "fixed-budget"])
def test_golden_decisions_show_both_outcomes_and_the_edge(family: str) -> None:
    content = built(family_content(family))
    decisions = [step for entry in content["golden"] for step in entry["decisions"]]
    threshold = content["decision_threshold"]
    assert {step["stop"] for step in decisions} == {True, False}
    assert any("" in (step["answer"] for step in entry["steps"]) for entry in content["golden"])
    for step in decisions:
        assert step["stop"] == (step["score"] >= threshold)
    if family in ("learned", "confidence", "entropy"):
        assert any(step["score"] == threshold for step in decisions)
        assert any(-1e-12 < step["score"] - threshold < 0 for step in decisions if not step["stop"])
    if family == "confidence-leap":  # through exp: C libraries differ in the last bit
        distance = min(abs(step["score"] - threshold) for step in decisions)
        assert 1e-11 < distance < 1e-6


def climbs(family: str) -> dict[str, Any]:
    """A ladder of nine rungs, which gives up where it can tell an unsure reply."""
    levels = {
        "cap": [-30.0 * k for k in range(1, 9)],
        "rung-agreement": [2.0] * 8,
        "rung-confidence": [-0.2] * 8,
    }
    ladder: dict[str, Any] = {
        "rungs": [{"name": f"r{k}", "price": [1.0, 1.0, 1.0]} for k in range(9)],
        "asked": list(range(8)),
        "path": [levels[family]],
    }
    if family == "rung-confidence":
        ladder |= {"on_give_up": "escalate", "give_up": [-1.0]}
    return ladder_content(family, ladder)


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("learned", "8306c2d030b0325e"),
        ("entropy", "7b367995736639f6"),
        ("agreement", "20dcd32b8f2d9ca7"),
        ("learned, open cue", "3ed2c5656334f5ac"),
        ("grid-stop", "497c14a0ea75dc83"),
        ("stride-stop", "7f939426964c739c"),
        ("marker", "57804b212d2130ef"),
        ("marker-stop", "b8519814b1746f6b"),
        ("long grid", "fc57f45cb948b6bf"),
        ("cap", "a2c64c6e7a68cb8c"),
        ("rung-agreement", "b78bdcd390836e02"),
        ("rung-confidence", "e87811b02b40e231"),
    ],
)
def test_the_same_rule_shows_the_same_decisions_in_every_version(
    family: str, expected: str
) -> None:
    """Plain arithmetic on numbers from `random()`; otherwise digests would differ by version."""
    if family in CONTENTS:
        content = named(family)
    elif family in TRIGGERS:
        content = built(anywhere_content(family, "agreement"))
    elif family in RUNG_FAMILIES:
        content = built(climbs(family))
    else:
        grid = trigger_content(ListedTrigger(tuple(range(0, 400, 8))))
        content = built(family_content("agreement", 1e9) | grid)
    text = json.dumps(content["golden"], sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == expected


@pytest.mark.parametrize(("n_steps", "shown"), [(256, True), (257, False)])
def test_a_stop_at_the_last_position_is_shown_if_it_is_not_too_far(
    n_steps: int, shown: bool
) -> None:
    trigger = trigger_content(stride(1, 300, 1, n_steps))
    golden = built(family_content("agreement", 1e9) | trigger)["golden"]
    assert [len(entry["steps"]) for entry in golden].count(n_steps) == shown
    assert (len(golden[-1]["steps"]) == n_steps) == shown
    assert golden[-1]["decisions"][-1]["stop"] == shown


def test_the_stop_at_the_last_position_is_shown_where_the_score_would_not_stop() -> None:
    trigger = trigger_content(stride(1, 300, 1, 40))
    last = built(family_content("agreement", 39.0) | trigger)["golden"][-1]
    assert (len(last["steps"]), last["decisions"][-1]["stop"]) == (40, True)
    assert last["decisions"][-1]["score"] < 39.0


def test_the_threshold_after_one_marker_is_shown_on_both_sides() -> None:
    """The second probe comes at least 8 tokens after the first, and stops after 12."""
    trigger = trigger_content(MarkerTrigger(((1,),), 8, 5))
    golden = built(family_content("agreement", 12.0) | trigger)["golden"]
    second = [entry for entry in golden if len(entry["steps"]) == 2]
    ends = {e["steps"][1]["think_tokens"]: e["decisions"][1]["stop"] for e in second}
    assert (ends[19], ends[20]) == (False, True)


def test_a_made_up_marker_at_the_last_position_is_that_position() -> None:
    trigger = trigger_content(MarkerTrigger(((1,),), 8, 5, stop_at=24))  # of 8, 24 and 48
    golden = built(family_content("agreement", 1e9) | trigger)["golden"]
    assert {tuple(step["think_tokens"] for step in e["steps"]) for e in golden[:3]} == {(8, 24)}


def test_no_example_stands_where_a_logarithm_rounded_otherwise_decides_otherwise() -> None:
    """The score after 20 tokens is the threshold itself: 19 and 20 are no example."""
    level = math.log(20)
    content = anywhere_content("marker", "learned")
    content |= {"features": ["log_position"], "mean": [0.0], "scale": [1.0], "coef": [1.0]}
    content |= {"intercept": 0.0, "decision_threshold": level, "order": [level]}
    content |= {"threshold": display_threshold("learned", level)}
    golden = built(content)["golden"]
    scores = {step["score"] for entry in golden for step in entry["decisions"]}
    assert min(scores) < level < max(scores)
    assert all(abs(score - level) > 1e-11 for score in scores)


def test_no_reply_stands_where_a_logarithm_rounded_otherwise_serves_another() -> None:
    """After 20 tokens the score is the threshold of the first reply, and not of the second."""
    rungs = [{"name": name, "price": [1.0, 1.0, 1.0]} for name in "abc"]
    level = math.log1p(20)
    ladder = {"rungs": rungs, "asked": [0, 1], "path": [[level, 9.0]]}
    content = ladder_content("rung-learned", ladder, features=["log_tokens"], intercept=0.0)
    golden = built(content | {"mean": [0.0], "scale": [1.0], "coef": [1.0]})["golden"]
    scores = {entry["decisions"][0]["score"] for entry in golden}
    assert min(scores) < level < max(scores)
    assert all(abs(score - level) > 1e-11 for score in scores)


def test_a_fixed_budget_shows_its_stop_alone() -> None:
    content = built(family_content("fixed-budget"))
    assert content["budgets"] == []
    for entry in content["golden"]:
        assert [step["think_tokens"] for step in entry["steps"]] == [96]
        assert entry["decisions"] == [{"stop": True, "score": 96.0}]


def test_golden_decisions_of_mixed_tasks_cover_all_of_them() -> None:
    content = built(example_content(task="mixed"))
    assert {entry["task"] for entry in content["golden"]} == {"math", "numeric", "choice", "exact"}


def test_many_checkpoints_keep_golden_small(tmp_path: Path) -> None:
    content = built(
        family_content("run-stability", 900.0)
        | {"budgets": list(range(0, 10_240, 10)), "max_think": 10_240}
    )
    assert sum(len(entry["steps"]) for entry in content["golden"]) <= 17 * 32
    save_policy(checked(content), tmp_path / "policy.joblib")
