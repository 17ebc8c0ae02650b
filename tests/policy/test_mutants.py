"""Damaged and forged policies: none loads as another, and none that says something impossible."""

from __future__ import annotations

from typing import Any

import pytest

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import Policy
from tests.policy.forgeries import EXAMPLE, impossible, originals
from tests.policy.mutants import fuzz
from tests.policy_content import built, file_bytes


def test_a_sample_of_mutants_is_refused_or_possible() -> None:
    found = fuzz(300, 2026)
    assert found.refused > 150
    assert found.loaded > 5  # some changes are none that anybody could tell


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_mutants_are_refused_or_possible(seed: int) -> None:
    """Seven tenths of them are forged under a right digest."""
    found = fuzz(1_030, seed)
    assert found.refused > 600
    assert found.loaded > 25
    assert found.slowest_s < 5.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"certificate.confidence": 1.0}, "confidence': expected 1 - delta"),
        ({"certificate.looks": 9}, "earlier_deltas': expected one for each of 8 unplanned looks"),
        ({"certificate.looks": 2, "certificate.earlier_deltas": [0.01]}, r"delta - .* \(0.94\)"),
        ({"certificate.earlier_deltas": [0.01]}, "expected one for each of 0 unplanned looks"),
        ({"certificate.planned_looks": 3}, "chain_delta': expected at most delta of one look"),
        ({"certificate.looks": 9, "certificate.planned_looks": 3}, "looks': expected at most plan"),
        ({"certificate.alpha_over_full_accuracy": 0.1}, "expected at least alpha"),
        ({"certificate.differs_upper": 0.01}, "differs_upper': expected above 0.0625"),
        ({"certificate.max_think": 8192}, "certificate.max_think': expected the policy's own"),
        ({"certificate.on_stop": "answer"}, "certificate.on_stop': expected the policy's own"),
        ({"certificate.answer_cap": 7}, "certificate.answer_cap': expected the policy's own"),
        ({"certificate.labelled": 10**6}, "labelled': expected at most"),
        ({"max_think": 1, "certificate.max_think": 1}, "no position beyond max_think .1., got 128"),
        ({"probe.cap": 2**62}, "an integer from 1 to 16777216"),
        ({"expected.test_accuracy": 0.01}, "test_accuracy': expected a"),
        ({"expected.calibration_full_accuracy": 0.0}, "full_accuracy': expected at least"),
        ({"expected.test_risk_ci95": [0.0, 1.0]}, "the exact interval of 5 of 80"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    content = built(EXAMPLE)
    assert impossible(content) == []
    for path, value in changes.items():
        *parents, key = path.split(".")
        node = content
        for parent in parents:
            node = node[parent]
        node[key] = value
    with pytest.raises(PolicyError, match=message):
        Policy.of(file_bytes(content))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"both": 1}, r"both, one, none': expected certificate.n \(80\) questions in all"),
        ({"one": 2, "none": 76}, "losses': expected 2 x 2 [+] 2"),
        ({"both": 3, "one": 1, "none": 76}, "do not show a share of at most .* by the exact test"),
        ({"losses": 5}, "losses': expected 2 x 2 [+] 3"),
        ({"traces": None}, "all three with two traces, else null"),
        ({"traces": 3}, "traces': expected"),
        ({"none": None}, "all three with two traces, else null"),
        ({"alpha": 0.05, "upper": 0.05}, "alpha': 2 with both replies lost and 75 with none of 80"),
        ({"upper": 0.04}, "upper': 2 with both replies lost and 75 with none of 80"),
        ({"labelled": 20}, "traces': expected null with 'labelled'"),
    ],
)
def test_pairs_of_replies_are_counted_again(changes: dict[str, Any], message: str) -> None:
    (twice,) = (c for c in originals() if (c["certificate"] or {}).get("traces"))
    content = twice | {"certificate": twice["certificate"] | changes}
    with pytest.raises(PolicyError, match=message):
        Policy.of(file_bytes(content))


@pytest.mark.parametrize("name", ["certificate", "expected"])
def test_full_thinking_promises_nothing(name: str) -> None:
    (full,) = (content for content in originals() if content["kind"] == "full-budget")
    content = full | {name: EXAMPLE[name]}
    with pytest.raises(PolicyError, match=f"{name}': expected null for kind 'full-budget'"):
        Policy.of(file_bytes(content))


def test_what_is_honest_is_possible() -> None:
    assert [impossible(content) for content in originals()] == [[]] * len(originals())
