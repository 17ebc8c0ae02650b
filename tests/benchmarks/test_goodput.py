"""The benchmark of goodput: its walk, intervals that hold what they should, and a whole run."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest

from tests.benchmarks.goodput import (
    ARMS,
    FAR,
    ROUTES,
    Answer,
    Arm,
    Block,
    fit_ratio,
    measure,
    next_rate,
)
from tests.serving.virtual_server import VirtualServer, run_virtually


def walked(
    rng: np.random.Generator, turns: int, ratio: float, width: float, drift: float = 0.0
) -> list[Block]:
    """Blocks at a server whose lateness grows with the rate, plus noise; full thinking just meets
    the limits at one question a second."""
    start, blocks, slow = math.exp(rng.uniform(-2, -1)), list[Block](), 0.0
    for turn in range(turns):
        slow = 0.8 * slow + drift * rng.normal()  # the same machine, for both arms
        for arm in ARMS if turn % 2 == 0 else ARMS[::-1]:
            rate = next_rate(start, [b.met for b in blocks if b.arm == arm])
            limit = slow + math.log(ratio) * (arm == "policy")
            late = (math.log(rate) - limit) / width + rng.normal() / 3
            blocks.append(Block(turn, arm, rate, min(FAR, max(-FAR, late))))
    return blocks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("turns", "width", "drift", "least"),
    [(25, 0.05, 0.05, 0.93), (10, 0.12, 0.0, 0.88)],
    ids=["a drifting machine", "few, gentle"],
)
def test_the_interval_holds_the_ratio(turns: int, width: float, drift: float, least: float) -> None:
    # Of 100: three standard errors below 93 % (few and gentle: 88 %).
    rng = np.random.default_rng(turns)
    found = [fit_ratio(walked(rng, turns, 1.4, width, drift)) for _ in range(100)]
    known = [f for f in found if f is not None]
    assert len(known) >= 97
    held = np.mean([f.low <= 1.4 <= f.high for f in known])
    assert held >= least - 3 * math.sqrt(least * (1 - least) / len(known))
    # The intervals are short, and centred on the truth.
    assert np.median([f.high / f.low for f in known]) < 2.1
    assert np.median([f.ratio for f in known]) == pytest.approx(1.4, rel=0.03)
    assert np.median([f.full for f in known]) == pytest.approx(1, rel=0.06)


def test_without_both_outcomes_there_is_no_ratio() -> None:
    blocks = walked(np.random.default_rng(1), 12, 1.4, 0.05)
    assert fit_ratio(blocks) is not None
    assert fit_ratio([]) is None
    assert fit_ratio([replace(b, lateness=-0.1) for b in blocks]) is None
    only = [replace(b, lateness=-0.1) if b.arm == "policy" else b for b in blocks]
    assert fit_ratio(only) is None


def test_the_walk_doubles_and_then_narrows() -> None:
    assert next_rate(1.0, []) == 1
    assert next_rate(1.0, [True, True]) == pytest.approx(4)
    # Down by the root of two, and from the second turn-round on by its root.
    assert next_rate(1.0, [True, True, False]) == pytest.approx(4 / 2**0.5)
    narrow = [True, True, False, True, False, True]
    assert next_rate(1.0, narrow) / next_rate(1.0, narrow[:-1]) == pytest.approx(2**0.25)


# --- Whole runs, in simulated time ----------------------------------------------------------------


def measured(slo: dict[str, float], stopped: int = 30, route: str = "policy") -> list[Block]:
    """Blocks at a server that thinks 60 tokens, under a policy that stops at `stopped`."""
    server = VirtualServer()

    async def ask(arm: Arm, number: int) -> Answer:
        loop, tokens = asyncio.get_running_loop(), 60 if arm == "full" else stopped
        began = loop.time()
        first = await server.decode(1, 20 + number, tokens)
        ended = loop.time()
        tpot = (ended - first) / (tokens - 1)
        answered_by = ROUTES[arm] if arm == "full" else route
        return Answer(first - began, tpot, ended - began, tokens, answered_by)

    return run_virtually(measure(ask, 40, slo, minutes=4.0, block=100))


def test_a_server_without_the_policy_is_refused() -> None:
    with pytest.raises(SystemExit, match="expected an answer of route 'policy'"):
        measured({"e2e": 1.0}, route="passthrough")
