"""Many requests through the plugin's route, some left by their client: none wrong, none leaks."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.serving.vllm.fake_engine import QUESTION, FakeEngine, route_at
from tests.serving.vllm.test_route import Client

AT_ONCE = 48


@pytest.mark.slow
@pytest.mark.parametrize(
    "n_requests", [200, pytest.param(10_000, marks=pytest.mark.long)], ids=["few", "many"]
)
def test_every_reply_is_right_and_usage_is_what_the_engine_counts(n_requests: int) -> None:
    engine = FakeEngine(fetched_late=random.Random(7))
    route = route_at(engine)
    registry = route.metrics._registry
    places, chance = asyncio.Semaphore(AT_ONCE), random.Random(3)
    usage: dict[str, int] = {}
    texts: set[tuple[str, str]] = set()
    left = 0

    async def ask(number: int) -> None:
        nonlocal left
        streams, leaves = number % 2 == 1, number % 5 == 4
        after = chance.randrange(1, 40)
        client = Client(route)
        body: dict[str, Any] = {"model": "tiny-reasoner", "messages": QUESTION}
        if streams:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        async with places:
            last = len(engine.asked) + after
            if leaves:
                client.leaves = lambda: len(engine.asked) >= last
            await client.ask(body)
        if not client.data.endswith(b"[DONE]\n\n" if streams else b"}"):
            assert leaves
            left += 1
            return
        reply = client.reply
        texts.add((reply.text("reasoning"), reply.text("content")))
        name = (reply.events[-1] if streams else reply.json)["id"]
        usage[name] = reply.usage["completion_tokens"]

    async def all_of_them() -> None:
        before = len(asyncio.all_tasks())
        await asyncio.gather(*map(ask, range(n_requests)))
        await asyncio.sleep(0.1)
        assert len(asyncio.all_tasks()) == before

    asyncio.run(all_of_them())
    assert len(texts) == 1
    assert len(usage) + left == n_requests
    assert left > n_requests // 20
    decoded: dict[str, int] = {}
    for request, tokens in engine.decoded.items():
        name = "-".join(request.split("-")[:2])
        decoded[name] = decoded.get(name, 0) + tokens
    assert sum(usage.values()) == sum(decoded[name] for name in usage)
    assert not engine.running
    assert registry.get_sample_value("stopadvisor_requests_in_flight") == 0
