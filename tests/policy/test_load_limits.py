"""The most that loading a policy may cost, in calls and in memory, for files up to the size cap."""

from __future__ import annotations

import cProfile
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy import consistency, file
from stopadvisor.policy.file import MAX_BYTES, MAX_CONTAINERS, MAX_ELEMENTS, MAX_TEXT, decode
from stopadvisor.policy.frozen import Policy
from tests.policy_content import built, checked, example_content, file_bytes

MEGABYTE = 2**20
BUILT = built(example_content())


def _with(**changes: Any) -> bytes:
    return file_bytes(BUILT | changes, "joblib")


def _arguments(**arguments: Any) -> bytes:
    return _with(chat_template_kwargs=arguments)


def _ids(count: int, size: int) -> dict[str, Any]:
    return {**BUILT["split"], "fit": [f"{k:0{size}d}" for k in range(count)]}


def _golden(answer: str, steps: int = 6) -> list[dict[str, Any]]:
    entry = BUILT["golden"][0]
    step = entry["steps"][0] | {"answer": answer, "normalized": "none"}
    decisions = [{"stop": False, "score": 0.0}] * steps
    return [entry | {"steps": [step] * steps, "decisions": decisions} for _ in range(32)]


HEAVY: dict[str, Callable[[], bytes]] = {
    "ids": lambda: _with(split=_ids(240_000, 20)),
    "long-ids": lambda: _with(split=_ids(100_000, 64)),
    "dicts": lambda: _arguments(x=[{str(k): k} for k in range(49_000)]),
    "lists": lambda: _arguments(x=[[1.5] * 4 for _ in range(49_000)]),
    "keys": lambda: _arguments(**{str(k): float(k) for k in range(120_000)}),
    "features": lambda: _with(calibration_features=[[0.1 * k] * 8 for k in range(27_000)]),
    "order": lambda: _with(order=[1.375 - 0.001 * k for k in range(200_000)]),
    "control-characters": lambda: _arguments(**{str(k): "\x01" * 40_000 for k in range(8)}),
    "wide-texts": lambda: _arguments(x=["x" * 500_000 + "🙂"] * 3 + ["x" * 10**6] * 6),
    "golden-text": lambda: _with(golden=_golden("1,11," * 68)),
    "golden-white-space": lambda: _with(golden=_golden(" " * 300 + "x")),
    "golden-too-much-text": lambda: _with(golden=_golden(" " * 30_000 + "x", 1)),
    "no-end": lambda: file_bytes(BUILT)[:-3] + b" " * (8 * MEGABYTE - 20_000),
    "decimals": lambda: _arguments(x=314159).replace(b"314159", b"0." + b"1" * 7_900_000),
    "white-space": lambda: b" " * 8 * MEGABYTE,
}
"""Files as large and as expensive to load as the limits allow; where possible with a right digest,
so that every check sees them."""

MOST_MEMORY = 64 * MEGABYTE
MOST_CALLS = 8_000_000
"""Calls of functions, Python's and C's: a second holds about ten million."""


def load(data: bytes) -> None:
    try:
        Policy.of(data)
    except PolicyError as error:
        assert "\n" not in str(error)  # noqa: PT017  most are refused, and some load


def calls_and_memory(data: bytes) -> tuple[int, int]:
    """Function calls and peak memory while a file is loaded, once for each: it takes less time."""
    profile = cProfile.Profile(subcalls=False)  # counts in C, without callers of each function
    profile.runcall(load, data)
    tracemalloc.start()
    try:
        load(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return sum(entry.callcount for entry in profile.getstats()), peak


@pytest.mark.slow
@pytest.mark.parametrize("name", HEAVY)
def test_a_file_up_to_the_cap_takes_little_memory_and_few_calls(name: str) -> None:
    data = HEAVY[name]()
    assert len(data) <= MAX_BYTES
    calls, peak = calls_and_memory(data)
    # The file's own bytes are held by this test; a loader that read them would hold them too.
    assert peak + len(data) < MOST_MEMORY, f"{peak / MEGABYTE:.1f} MB"
    assert (1_000 if name == "golden-text" else 0) < calls < MOST_CALLS


def test_what_would_take_long_is_refused_before_it_does() -> None:
    with pytest.raises(PolicyError, match="at most 65536 characters of answers, got 960032"):
        Policy.of(HEAVY["golden-too-much-text"]())


def test_the_limits_are_those_that_the_pages_name() -> None:
    limits = (MAX_BYTES, MAX_ELEMENTS, MAX_CONTAINERS, MAX_TEXT)
    assert limits == (8 * MEGABYTE, 250_000, 50_000, MEGABYTE)
    assert file._MAX_WIDE == 2 * MEGABYTE


@pytest.mark.parametrize("name", ["MAX_CONTAINERS", "MAX_ELEMENTS"])
def test_a_file_may_have_this_many_values_at_most(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_text_may_have_this_many_bytes_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    data = file_bytes(BUILT | {"chat_template_kwargs": {"x": "y" * 5000}})
    monkeypatch.setattr(file, "MAX_TEXT", 5000)
    assert decode(data)["kind"] == "stop"
    monkeypatch.setattr(file, "MAX_TEXT", 4999)
    with pytest.raises(PolicyError, match="at most 4999 bytes, one has 5000"):
        decode(data)


def test_texts_with_escapes_have_this_many_bytes_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    def wide(text: str) -> tuple[bytes, int]:
        """A file with this text, and how much of it is counted."""
        data = file_bytes(BUILT | {"chat_template_kwargs": {"x": text}})
        monkeypatch.setattr(file, "_MAX_WIDE", 0)
        with pytest.raises(PolicyError, match="texts with escapes") as caught:
            decode(data)
        return data, int(str(caught.value).rpartition(" ")[2])

    monkeypatch.setattr(file, "MAX_TEXT", 5000)
    data, most = wide("é" + "y" * 2000)
    assert most == wide("y" * 2000)[1] + len(r'"\u00e9"') + 2000
    monkeypatch.setattr(file, "_MAX_WIDE", most)
    assert decode(data)["kind"] == "stop"
    monkeypatch.setattr(file, "_MAX_WIDE", most - 1)
    with pytest.raises(PolicyError, match=f"at most {most - 1} bytes in all, got {most}"):
        decode(data)


def test_golden_answers_have_this_many_characters_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    content = built(example_content())
    cost = sum(len(step["answer"]) for entry in content["golden"] for step in entry["steps"])
    monkeypatch.setattr(consistency, "MAX_GOLDEN_TEXT", cost)
    assert checked(content).kind == "stop"
    monkeypatch.setattr(consistency, "MAX_GOLDEN_TEXT", cost - 1)
    with pytest.raises(PolicyError, match=f"golden.*at most {cost - 1}"):
        checked(content)
