"""Servers that cache in blocks, token by token, or nothing, told apart by what they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from stopadvisor.engines.http.client import Client
from stopadvisor.engines.http.completion import Completion
from stopadvisor.engines.openai.engine import found_in_cache, measure_regime
from stopadvisor.engines.trace import RequestUsage
from stopadvisor.ground.errors import ProbeError
from stopadvisor.runs.server_regime import (
    SERVING,
    Cached,
    RegimeMeasure,
    Repeated,
    classify_regime,
    read_regime,
    write_regime,
)


@dataclass
class _Server:
    """Answers as a server with this cache does; its clock runs by tokens."""

    block: int | None
    """None: nothing is cached."""
    says: bool = True
    urls: tuple[str, ...] = ("http://127.0.0.1:1/v1",)
    read_cost: float = 0.0
    floor: float = 0.01
    per_token: float = 1e-4
    seen: list[tuple[int, ...]] = field(default_factory=list)
    questions: list[int | None] = field(default_factory=list)

    async def complete(
        self, prompt_ids: Sequence[int], *, max_tokens: int, replica: int | None
    ) -> Completion:
        assert max_tokens == 1
        self.questions.append(replica)
        prompt = tuple(prompt_ids)
        cached = 0
        if self.block and prompt in self.seen:
            cached = (len(prompt) - 1) // self.block * self.block
        self.seen.append(prompt)
        tokens = len(prompt) - cached + self.read_cost * cached
        seconds = self.floor + self.per_token * tokens
        said = cached if self.says else None
        return Completion((5,), "", None, None, "length", len(prompt), 1, said, seconds)


def _measure(server: _Server, context: int = 2048) -> RegimeMeasure:
    return asyncio.run(measure_regime(cast(Client, server), range(100, 300), context=context))


@pytest.mark.parametrize(
    ("server", "regime", "block", "basis"),
    [
        pytest.param(_Server(16), "prefix-cache", 16, "cached-tokens", id="blocks of 16"),
        pytest.param(_Server(32), "prefix-cache", 32, "cached-tokens", id="blocks of 32"),
        pytest.param(_Server(528), "prefix-cache", 528, "cached-tokens", id="hybrid, 528"),
        pytest.param(_Server(1), "kv-fork", 1, "cached-tokens", id="token by token"),
        pytest.param(
            _Server(1, read_cost=0.3), "prefix-cache", 1, "cached-tokens", id="token by token, slow"
        ),
        pytest.param(_Server(None), "black-box", None, "cached-tokens", id="says none"),
        pytest.param(_Server(16, says=False), "prefix-cache", None, "wall-clock", id="fast, mute"),
        pytest.param(_Server(None, says=False), "black-box", None, "wall-clock", id="slow, mute"),
        pytest.param(
            _Server(None, says=False, per_token=0), None, None, "wall-clock", id="cannot be told"
        ),
    ],
)
def test_a_server_is_told_by_what_a_repeated_prompt_costs(
    server: _Server, regime: str | None, block: int | None, basis: str
) -> None:
    found = _measure(server)
    assert (found.regime, found.cache_block, found.basis) == (regime, block, basis)


def test_one_request_that_was_held_up_changes_little() -> None:
    server = _Server(16)
    rows = list(_measure(server).repeated)
    rows[7] = replace(rows[7], first_seconds=9.0, second_seconds=9.0)
    cost = classify_regime(rows).read_cost
    assert cost == pytest.approx(0.0, abs=0.03)


def test_a_block_longer_than_the_context_is_a_black_box() -> None:
    assert _measure(_Server(528), context=512).regime == "black-box"


def test_prompts_fit_the_context_and_are_new_each_time() -> None:
    server = _Server(16)
    _measure(server, context=300)
    assert max(map(len, server.seen)) < 300
    assert all(server.seen.count(prompt) == 2 for prompt in server.seen)


def test_every_server_is_asked() -> None:
    server = _Server(16, urls=("a", "b", "c", "d"))
    _measure(server)
    assert set(server.questions) == {0, 1, 2, 3}
    assert server.questions[::2] == server.questions[1::2]  # the second time where the first was


def test_the_price_of_reading_back_is_the_slope_of_the_second_time() -> None:
    cost = _measure(_Server(1, read_cost=0.3)).read_cost
    assert cost == pytest.approx(0.3, abs=0.01)
    assert _measure(_Server(16, per_token=0)).read_cost is None


def test_noise_is_not_taken_for_a_price() -> None:
    noise = np.random.default_rng(5).exponential(0.01, size=(2, 15))
    rows = [
        Repeated(tokens, None, 0.01 + first, 0.01 + second)
        for tokens, first, second in zip(range(100, 1600, 100), *noise.tolist(), strict=True)
    ]
    assert classify_regime(rows).regime is None


CACHES = [Repeated(n, n // 16 * 16, 0.01 + n * 1e-4, 0.01) for n in (101, 333, 725)]


def test_a_cache_that_does_not_hold_under_load_is_a_black_box() -> None:
    held = classify_regime(CACHES, Cached(100, 100_000, 90_000))
    assert (held.regime, held.cache_block) == ("prefix-cache", 16)
    assert "of the probes' prefixes 90%" in held.reason
    lost = classify_regime(CACHES, Cached(100, 100_000, 20_000))
    assert (lost.regime, lost.cache_block) == ("black-box", None)
    assert "under load the cache does not hold them" in lost.reason


def test_probes_that_nothing_could_be_cached_for_change_nothing() -> None:
    assert classify_regime(CACHES, Cached(3, 0, 0)).regime == "prefix-cache"


def test_probes_are_held_against_what_an_earlier_request_had_sent() -> None:
    rows = [
        RequestUsage("trace", 0, 50, 0),
        RequestUsage("probe", 16, 50 + 16 + 6, 64),  # 66 tokens stand: two blocks of 32
        RequestUsage("probe", 70, 50 + 70 + 6, 32),  # 120 stand, three blocks; two were lost
        RequestUsage("probe", 80, 50 + 80 + 6, 128),
        RequestUsage("probe", 90, 50 + 96 + 14, 160),  # suffix found too: does not count
        RequestUsage("answer", 90, 50 + 90 + 1, 0),
        RequestUsage("probe", 90, 50 + 90 + 6, None),  # not said
    ]
    assert found_in_cache(rows, 6, 32) == Cached(4, 64 + 96 + 128 + 128, 64 + 32 + 128 + 128)


def test_a_measure_comes_back_from_its_file(tmp_path: Path) -> None:
    assert read_regime(tmp_path) is None
    measure = classify_regime(CACHES, Cached(100, 100_000, 90_000))
    write_regime(tmp_path, measure)
    assert read_regime(tmp_path) == measure


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema": 2}',
        '{"schema": 1, "probes": null, "basis": "wall-clock", "repeated": [{}]}',
        '{"schema": 1, "probes": null, "basis": "visible-stream", "repeated": []}',
    ],
)
def test_a_damaged_file_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / SERVING).write_text(text)
    with pytest.raises(ProbeError, match=r"serving\.json: not a measure of a server"):
        read_regime(tmp_path)
