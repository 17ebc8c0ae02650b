"""The most that loading a policy may cost, in calls and in memory, for files up to the size cap."""

from __future__ import annotations

import cProfile
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest

from stopadvisor.errors import PolicyError
from stopadvisor.policy import file, replay_cost, values
from stopadvisor.policy.file import decode
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.replay_cost import check_replay_cost
from stopadvisor.policy.values import (
    MAX_BYTES,
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_ELEMENTS,
    MAX_TEXT,
    TextBudget,
    check_plain,
    to_plain,
)
from tests.policy.heavy import BUILT, HEAVY, MEGABYTE
from tests.policy_content import file_bytes

MOST_MEMORY = 64 * MEGABYTE
MOST_CALLS = 8_000_000
"""Calls of functions, Python's and C's: a second holds about ten million."""


def load(data: bytes) -> None:
    try:
        Policy(decode(data))
    except PolicyError as error:
        assert "\n" not in str(error)  # noqa: PT017  most are refused, and some load


def calls_of(data: bytes) -> int:
    """How many functions are called while a file is loaded."""
    profile = cProfile.Profile(subcalls=False)  # counts in C, and no caller of a callee
    profile.runcall(load, data)
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.slow
@pytest.mark.parametrize("name", HEAVY)
def test_a_file_up_to_the_cap_takes_little_memory_and_few_calls(name: str) -> None:
    data = HEAVY[name]()
    assert len(data) <= MAX_BYTES
    tracemalloc.start()
    try:
        load(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The file's own bytes are held by this test; a loader that read them would hold them too.
    assert peak + len(data) < MOST_MEMORY, f"{peak / MEGABYTE:.1f} MB"
    assert calls_of(data) < MOST_CALLS


def test_calls_are_counted() -> None:
    assert 1_000 < calls_of(HEAVY["golden-text"]()) < MOST_CALLS


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("golden-too-much-text", "at most 65536 characters of answers, got 960032"),
        ("trees", "at most 1000000 steps through trees"),
    ],
)
def test_what_would_take_long_is_refused_before_it_does(name: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        Policy(decode(HEAVY[name]()))


def test_the_limits_are_those_that_the_pages_name() -> None:
    limits = (MAX_BYTES, MAX_ELEMENTS, MAX_CONTAINERS, MAX_TEXT, MAX_DEPTH)
    assert limits == (8 * MEGABYTE, 250_000, 50_000, MEGABYTE, 24)
    assert file._MAX_WIDE == 2 * MEGABYTE


@pytest.mark.parametrize("name", ["MAX_CONTAINERS", "MAX_ELEMENTS"])
def test_a_file_may_hold_so_much_and_no_more(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = file_bytes(BUILT)
    counts = {
        "MAX_CONTAINERS": data.count(b"[") + data.count(b"{"),
        "MAX_ELEMENTS": data.count(b"[") + data.count(b"{") + data.count(b","),
    }
    monkeypatch.setattr(file, name, counts[name])
    assert decode(data)["kind"] == "stop"
    monkeypatch.setattr(file, name, counts[name] - 1)
    with pytest.raises(PolicyError, match="at most"):
        decode(data)


def test_values_may_be_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"a": [[], 2**63 - 1, -(2**63)]}
    for name, most in (("MAX_ELEMENTS", 7), ("MAX_CONTAINERS", 3), ("MAX_DEPTH", 3)):
        with monkeypatch.context() as patched:
            patched.setattr(values, name, most)
            check_plain(content)
            patched.setattr(values, name, most - 1)
            with pytest.raises(PolicyError, match="at most"):
                check_plain(content)
    for value in (2**63, -(2**63) - 1):
        with pytest.raises(PolicyError, match="integers must fit 64 bits"):
            check_plain({"a": value})
    monkeypatch.setattr(values, "MAX_DEPTH", 2)
    assert to_plain(([1],)) == [[1]]
    assert to_plain([np.float64(0.5)]) == [0.5]
    for deep in (([[1]],), {"a": ({"b": 1},)}):
        with pytest.raises(PolicyError, match="at most 2 levels"):
            to_plain(deep)


def test_texts_may_take_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = "🙂" * 150  # 600 bytes of UTF-8; what Python takes is more
    monkeypatch.setattr(values, "MAX_TEXT", 600)
    TextBudget().spend(wide)
    TextBudget().spend("x" * 600)
    TextBudget().check_size(600)
    for text in (wide + "🙂", "x" * 601):
        with pytest.raises(PolicyError, match=r"at most 600 bytes, one has 60[14]"):
            TextBudget().spend(text)
    monkeypatch.setattr(values, "MAX_BYTES", 1000 + sys.getsizeof(wide))
    budget = TextBudget()
    for text in (wide, "x" * 600, "y" * 400, ""):
        budget.spend(text)
    with pytest.raises(PolicyError, match="bytes of text, this one more"):
        budget.spend("z")


def test_branches_that_two_nodes_share_are_refused() -> None:
    content = to_plain(decode(HEAVY["trees"]()))
    tree = content["trees"][0]
    tree["right"][0] = tree["left"][0]
    content |= {"trees": [tree]}
    with pytest.raises(PolicyError, match="two parents"):
        Policy(content)


def test_a_replay_may_cost_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def content(text: int, n_steps: int = 1, n_trees: int = 0) -> dict[str, Any]:
        tree = {"feature": [0, 0, -1, -1, -1], "left": [1, 2, 0, 0, 0], "right": [4, 3, 0, 0, 0]}
        steps = [{"answer": "x" * text}] * n_steps
        return {"golden": [{"steps": steps}], "trees": [tree] * n_trees}

    check_replay_cost(content(replay_cost.MAX_GOLDEN_TEXT))
    with pytest.raises(PolicyError, match="at most 65536 characters of answers, got 65537"):
        check_replay_cost(content(replay_cost.MAX_GOLDEN_TEXT + 1))
    monkeypatch.setattr(replay_cost, "MAX_TREE_STEPS", 12)
    check_replay_cost(content(0, 3, 2))  # both two levels deep
    with pytest.raises(PolicyError, match="got 4 steps through trees of depth 4 in all"):
        check_replay_cost(content(0, 4, 2))
