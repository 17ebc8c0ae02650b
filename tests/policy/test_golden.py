"""Golden decisions when they are replayed: an answer, a stop, or a score that is another one."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest

from stopadvisor.errors import PolicyError
from stopadvisor.policy.frozen import FAMILIES, Policy, build_policy
from stopadvisor.policy.values import canonical_digest
from tests.policy_content import anywhere_content, family_content

BUILT = {family: build_policy(family_content(family)) for family in FAMILIES}
BUILT["learned, through logarithms"] = build_policy(anywhere_content("marker", "learned"))
INEXACT = ("confidence-leap", "learned, through logarithms")
"""Their scores go through exp or log, whose last bit depends on the C library."""


def signed(content: dict[str, Any]) -> Policy:
    """A policy that anyone could make who knows how the digest is made."""
    return Policy(content | {"digest": canonical_digest(content)})


def places(content: dict[str, Any]) -> list[tuple[int, int]]:
    """The first and the last decision of all, and one between them."""
    every = [(i, k) for i, e in enumerate(content["golden"]) for k in range(len(e["decisions"]))]
    return [every[0], every[len(every) // 2], every[-1]]


def up(score: float) -> float:
    return math.nextafter(score, math.inf)


def down(score: float) -> float:
    return math.nextafter(score, -math.inf)


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize(
    ("changed", "known"),
    [
        pytest.param(lambda score: score + 0.01, (), id="a hundredth more"),
        pytest.param(lambda score: score - 0.01, (), id="a hundredth less"),
        pytest.param(lambda score: score + 1e-9 * max(1.0, abs(score)), (), id="1e-9"),
        pytest.param(up, INEXACT, id="last bit up"),
        pytest.param(down, INEXACT, id="last bit down"),
    ],
)
def test_a_score_that_is_another_one_does_not_load(
    name: str, changed: Callable[[float], float], known: tuple[str, ...]
) -> None:
    """Even where the digest is right and the decision the same."""
    for entry, step in places(BUILT[name]):
        content = copy.deepcopy(BUILT[name])
        decision = content["golden"][entry]["decisions"][step]
        decision["score"] = changed(decision["score"])
        if name in known:
            assert signed(content)
            continue
        with pytest.raises(PolicyError) as refused:
            signed(content)
        assert f"golden decision {entry} of {len(content['golden'])} does not replay" in str(
            refused.value
        )
        assert f"checkpoint {step} gives stop=" in str(refused.value)
        assert f"score {decision['score']!r} in the file" in str(refused.value)


def test_a_decision_that_is_another_one_does_not_load() -> None:
    """Of a last step, behind which no decision would be missing."""
    for stops in (True, False):
        content = copy.deepcopy(BUILT["learned"])
        last = next(
            e["decisions"][-1] for e in content["golden"] if e["decisions"][-1]["stop"] == stops
        )
        last["stop"] = not stops
        with pytest.raises(PolicyError, match=f"gives stop={stops}, .* stop={not stops}, "):
            signed(content)


@pytest.mark.parametrize("family", ["confidence", "run-stability"])
def test_an_answer_that_normalises_to_something_else_does_not_load(family: str) -> None:
    """Also of a rule that looks at no answer: the package that wrote it had other rules."""
    content = copy.deepcopy(BUILT[family])
    step = content["golden"][0]["steps"][0]
    assert (step["answer"], step["normalized"]) == (" 7", "7")
    step["normalized"] = "8"
    with pytest.raises(PolicyError) as refused:
        signed(content)
    assert "golden decision 0 of" in str(refused.value)
    assert "answer ' 7' normalises to '7' here, to '8' in the file" in str(refused.value)
    for step in content["golden"][0]["steps"]:  # the same decisions, however it is written
        step.update(answer=" 8", normalized="8")
    assert signed(content)
