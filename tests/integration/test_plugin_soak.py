"""Ten thousand requests to a policy inside vLLM, some left by their clients: nothing is wrong."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from stopadvisor.engines.hf.engine import HfEngine
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import Reply, Request, make_requests, policy_plan
from stopadvisor.workload.questions import read_workload
from tests.integration.asking import Seen, ask, differing, gauges, metrics
from tests.integration.server import ROOT, VllmServer

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow, pytest.mark.long]

ROUND = 500
ROUNDS = 20
AT_ONCE = 48
MOST_GROWTH = 32 * 2**20
"""Bytes by which the server's process may grow over the second half of the rounds."""


def memory(server: VllmServer) -> int:
    """Bytes that the server's process holds."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return 1024 * int(re.findall(r"VmRSS:\s+(\d+)", status)[0])


async def ask_round(
    server: VllmServer, requests: list[Request], *, leave: random.Random | None
) -> list[Seen | None]:
    """Ask every other one for a stream; None for a client that has left."""
    places = asyncio.Semaphore(AT_ONCE)
    async with AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:

        async def one(number: int, request: Request) -> Seen | None:
            async with places:
                patience = None
                if leave is not None and number % 5 == 4:
                    patience = leave.uniform(0.0, 2.0)
                try:
                    async with asyncio.timeout(patience):
                        return await ask(client, request, stream=number % 2 == 1)
                except TimeoutError:
                    return None

        return list(await asyncio.gather(*(one(i, each) for i, each in enumerate(requests))))


async def until_idle(server: VllmServer, request: Request) -> dict[str, float]:
    """Ask until nothing runs: the engine states its counts when it decodes."""
    async with AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
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
    chance, left, held = random.Random(5), 0, []
    for number in range(ROUNDS):
        leave = chance if number % 2 else None
        before = metrics(plugin)["vllm:generation_tokens_total"]
        seen = asyncio.run(ask_round(plugin, requests, leave=leave))
        answered = [(a, b) for a, b in zip(seen, replayed, strict=True) if a is not None]
        assert differing(policy, [a for a, _ in answered], [b for _, b in answered]) == []
        if leave is None:
            decoded = metrics(plugin)["vllm:generation_tokens_total"] - before
            assert sum(found.usage["completion_tokens"] for found, _ in answered) == decoded
            assert len(answered) == len(requests)
        left += len(requests) - len(answered)
        assert set(asyncio.run(until_idle(plugin, requests[0])).values()) == {0.0}
        held.append(memory(plugin))
    assert left > 100
    assert held[-1] - held[ROUNDS // 2 - 1] < MOST_GROWTH
