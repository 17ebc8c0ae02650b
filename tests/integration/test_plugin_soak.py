"""Ten thousand requests to a policy inside vLLM, some abandoned by their clients."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import Reply, Request, make_requests, policy_plan
from stopadvisor.workload.questions import read_workload
from tests.integration.asking import Seen, ask, client_at, differing, gauges, metrics
from tests.integration.server import ROOT, VllmServer

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow, pytest.mark.long]

ROUND = 500
ROUNDS = 20
AT_ONCE = 48
IMPATIENT = 0.45
"""Share of clients that leave at a random moment, in every other round."""
WARM = 5
"""Rounds after which nothing may grow."""
MOST_GROWTH = 32 * 2**20
"""Bytes by which the server's process may still grow after them."""


def held_by(server: VllmServer) -> tuple[float, ...]:
    """Return the bytes, tasks, open files and threads of the idle server process."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    memory, threads = (
        int(re.findall(rf"{name}:\s+(\d+)", status)[0]) for name in ("VmRSS", "Threads")
    )
    files = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
    return 1024 * memory, metrics(server)["stopadvisor_event_loop_tasks"], files, threads


async def ask_round(
    server: VllmServer, requests: list[Request], patience: Sequence[float | None]
) -> list[Seen | None]:
    """Send a round of requests, every other one streamed; None for clients that left."""
    places = asyncio.Semaphore(AT_ONCE)
    async with client_at(server.port) as client:

        async def one(number: int, request: Request) -> Seen | None:
            async with places:
                try:
                    async with asyncio.timeout(patience[number]):
                        return await ask(client, request, stream=number % 2 == 1)
                except TimeoutError:
                    return None

        return list(await asyncio.gather(*(one(i, each) for i, each in enumerate(requests))))


async def until_idle(server: VllmServer, request: Request) -> dict[str, float]:
    """Send requests until nothing runs: the engine updates its gauges only when it decodes."""
    async with client_at(server.port) as client:
        for _ in range(100):
            await ask(client, request, stream=False)
            if not any(gauges(server).values()):
                break
    return gauges(server)


def test_ten_thousand_requests_some_left_by_their_clients(
    plugin: VllmServer, policy: Policy, local: HfEngine
) -> None:
    questions = read_workload(ROOT / "samples" / "arithmetic.jsonl").questions[:ROUND]
    requests = make_requests(questions, policy)
    replies: dict[int, Reply] = dict(
        local.serve(requests, policy_plan(policy), policy, batch_size=64)
    )
    replayed = [replies[i] for i in range(len(requests))]
    chance, left, began, usual = random.Random(5), 0, time.monotonic(), 0.0
    at_first, held = metrics(plugin), []
    for number in range(ROUNDS):
        leave = number % 2 == 1
        patience = [
            chance.uniform(0.0, 1.5 * usual) if leave and chance.random() < IMPATIENT else None
            for _ in requests
        ]
        before, asked = metrics(plugin)["vllm:generation_tokens_total"], time.monotonic()
        seen = asyncio.run(ask_round(plugin, requests, patience))
        answered = [(a, b) for a, b in zip(seen, replayed, strict=True) if a is not None]
        assert differing(policy, [a for a, _ in answered], [b for _, b in answered]) == []
        assert [a.usage["prompt_tokens"] for a, _ in answered] == [
            b.prompt_tokens for _, b in answered
        ]
        if not leave:
            usual = (time.monotonic() - asked) * AT_ONCE / ROUND
            decoded = metrics(plugin)["vllm:generation_tokens_total"] - before
            assert sum(found.usage["completion_tokens"] for found, _ in answered) == decoded
            assert len(answered) == len(requests)
        left += len(requests) - len(answered)
        assert set(asyncio.run(until_idle(plugin, requests[0])).values()) == {0.0}
        held.append(held_by(plugin))
    new = {name: value - at_first.get(name, 0.0) for name, value in metrics(plugin).items()}
    decoded, counted = new["vllm:generation_tokens_total"], new["stopadvisor_tokens_total"]
    grown = [after - before for before, after in zip(held[WARM - 1], held[-1], strict=True)]
    print(
        f"\n{ROUND * ROUNDS} requests, {left} left, {time.monotonic() - began:.0f} s; decoded "
        f"{decoded:.0f}, counted {counted:.0f}; bytes, tasks, files, threads {grown}, bytes after "
        f"each round {[int(one[0]) for one in held]}"
    )
    assert 0.1 * ROUND * ROUNDS < left < 0.2 * ROUND * ROUNDS
    assert counted == pytest.approx(decoded, rel=0.01), "those that were left, too"
    assert grown[0] < MOST_GROWTH
    assert max(grown[1:]) <= 2
