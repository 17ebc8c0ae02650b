"""How many requests at once a server serves well, found by sending more and more.

Knows a client and a few prompts; nothing of probing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from stopadvisor.engines.http.client import Client

__all__ = ["Concurrency", "RampStep", "find_concurrency"]

RAMP = (1, 2, 4, 8, 16, 32, 64, 128)
RAMP_TOKENS = 32
WORTH = 1.15
"""Tokens per second must grow by this factor for a step to be worth it."""
IN_VAIN = 2
"""Steps in a row that were not worth it, after which no more are tried."""
SLOWER = 4.0
"""A request may take so many times what it takes alone."""


@dataclass(frozen=True)
class RampStep:
    """One step of the ramp."""

    concurrency: int
    tokens_per_second: float
    latency: float
    """Seconds of the slowest request."""


@dataclass(frozen=True)
class Concurrency:
    """What the ramp found."""

    steps: tuple[RampStep, ...]
    """All that were tried; the last ones may be too many."""
    concurrency: int

    def remark(self) -> str:
        """Say what was found, and why no more."""
        by_number = {step.concurrency: step for step in self.steps}
        best = by_number[self.concurrency]
        text = (
            f"concurrency {self.concurrency}: {best.tokens_per_second:.0f} tokens/s, "
            f"{best.latency:.2f} s for {RAMP_TOKENS} tokens"
        )
        last = self.steps[-1]
        if last.concurrency > self.concurrency:
            text += (
                f" ({last.concurrency} at once: {last.tokens_per_second:.0f} tokens/s, "
                f"{last.latency:.2f} s)"
            )
        return text


async def find_concurrency(client: Client, prompts: Sequence[Sequence[int]]) -> Concurrency:
    """Double the requests until throughput stops growing or latency grows too much.

    Finds the last step whose throughput was worth it, at a bounded latency.  The prompts are used
    in turn.
    """
    await _step(client, prompts, 1)  # the first request finds everything cold
    steps: list[RampStep] = []
    best = 0
    for number in (n * len(client.urls) for n in RAMP):
        steps.append(await _step(client, prompts, number))
        if steps[-1].latency > SLOWER * steps[0].latency:
            break
        if steps[-1].tokens_per_second > WORTH * steps[best].tokens_per_second:
            best = len(steps) - 1
        # A single step may be held up by something else on that machine.
        if len(steps) - 1 - best >= IN_VAIN:
            break
    return Concurrency(tuple(steps), steps[best].concurrency)


async def _step(client: Client, prompts: Sequence[Sequence[int]], number: int) -> RampStep:
    tokens, slowest = 0, 0.0

    async def ask(ids: Sequence[int]) -> None:
        nonlocal tokens, slowest
        answer = await client.complete(ids, max_tokens=RAMP_TOKENS, replica=client.assign_replica())
        # Not every endpoint counts them.
        tokens += answer.decoded_tokens or len(answer.token_ids or ())
        slowest = max(slowest, answer.seconds)

    began = time.monotonic()
    async with anyio.create_task_group() as group:
        for i in range(number):
            group.start_soon(ask, prompts[i % len(prompts)])
    return RampStep(number, tokens / max(time.monotonic() - began, 1e-9), slowest)
