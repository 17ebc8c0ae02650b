"""The most that loading a policy may cost, in calls and in memory, for files up to the size cap."""

from __future__ import annotations

import pickle
import sys
import tracemalloc
from types import FrameType
from typing import Any

import pytest

from stopadvisor.errors import PolicyError
from stopadvisor.policy import opcodes, replay_cost
from stopadvisor.policy.file import decode
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.replay_cost import check_replay_cost
from stopadvisor.policy.values import MAX_BYTES, canonical_digest, to_plain
from tests.policy.heavy import BUILT, HEAVY, MEGABYTE

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
    count = 0

    def counted(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        load(data)
    finally:
        sys.setprofile(None)
    return count


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
        ("one-wide-letter-each", "bytes of text"),
        ("json-text", "a text in a policy has at most 1048576 bytes"),
        ("empty-texts", "at most 250000 values"),
        ("memo-entries", "opcodes"),
    ],
)
def test_what_would_take_long_is_refused_before_it_does(name: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        Policy(decode(HEAVY[name]()))


def test_branches_that_two_nodes_share_are_refused() -> None:
    content = to_plain(decode(HEAVY["trees"]()))
    tree = content["trees"][0]
    tree["right"][0] = tree["left"][0]
    content |= {"trees": [tree]}
    content["digest"] = canonical_digest(content)
    with pytest.raises(PolicyError, match="two parents"):
        Policy(content)


def test_the_digest_is_that_of_the_whole_json() -> None:
    import hashlib
    import json

    content = BUILT | {"profile": {"long": "é\x01" * 5000, "list": [[], {}, "x" * 3000, 1.5] * 300}}
    rest = {key: value for key, value in content.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    assert canonical_digest(content) == hashlib.sha256(text.encode()).hexdigest()


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


def test_a_pickle_may_hold_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opcodes, "MAX_ELEMENTS", 5)
    monkeypatch.setattr(opcodes, "MAX_CONTAINERS", 2)
    monkeypatch.setattr(opcodes, "MAX_DEPTH", 2)
    assert opcodes.decode_pickle(pickle.dumps([1, 2, 3, 4])) == [1, 2, 3, 4]
    assert opcodes.decode_pickle(pickle.dumps([[1, 2]])) == [[1, 2]]
    for value, message in (
        ([1, 2, 3, 4, 5], "at most 5 values"),
        ([[], []], "at most 2 lists and dicts"),
    ):
        with pytest.raises(PolicyError, match=message):
            opcodes.decode_pickle(pickle.dumps(value))
    with pytest.raises(PolicyError, match="left over"):
        opcodes.decode_pickle(b"\x80\x04((}.")
    with pytest.raises(PolicyError, match="at most 2 levels deep"):
        opcodes.decode_pickle(b"\x80\x04(((}.")
