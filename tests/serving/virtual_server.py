"""A server whose time is made up, and an event loop that does not wait for it.

The server computes in steps, as engines do: a step takes what its new requests bring to read, and
decodes one token for each that is under way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stopadvisor.policy.frozen import Policy
from stopadvisor.serving.load import KvUse, LoadServer, Timed
from stopadvisor.serving.replay import PAST_THE_POLICY

_Result = TypeVar("_Result")


class _VirtualLoop(asyncio.SelectorEventLoop):
    """Jumps to the next thing that waits for its time."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._now = max(self._now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def run_virtually(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine; whatever it sleeps takes no time."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(work)


@dataclass
class Costs:
    """Seconds; what the fit is to find."""

    request: float = 2e-3
    prefilled: float = 2e-5
    cached: float = 1e-6
    step: float = 4e-3
    each: float = 2e-4
    """Of a step, for each that is under way."""

    def decoded(self, batch: int) -> float:
        """Of a token."""
        return self.step / batch + self.each


@dataclass
class _Request:
    seconds: float
    left: int
    first: float | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class VirtualServer(LoadServer):
    """Stands in the place of a server; thinks `full` tokens, or what the policy leaves of them."""

    url: str = "http://virtual/v1"
    model: str = "tiny-reasoner"
    policy: Policy | None = None
    full: int = 60
    stopped: int = 30
    probes: int = 0
    """Requests that the policy makes beside, of a token each."""
    costs: Costs = field(default_factory=Costs)
    says_cached: bool = True
    before: Callable[[int], None] = lambda asked: None
    """Is told of each request, by number."""
    asked: int = 0
    header: str | None = None
    """In the place of the one that a policy calls for."""
    _waiting: deque[_Request] = field(default_factory=deque)
    _seen: set[str] = field(default_factory=set)
    _engine: asyncio.Task[None] | None = None

    async def __aenter__(self) -> VirtualServer:
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._engine is not None:
            self._engine.cancel()

    async def context(self) -> int | None:
        return 512

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[KvUse]:
        yield KvUse()

    async def ask(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Timed:
        self.asked += 1
        self.before(self.asked)
        loop = asyncio.get_running_loop()
        if self._engine is None or self._engine.done():
            self._engine = loop.create_task(self._run())
        text = body["messages"][0]["content"]
        prompt = 10 + len(text.split())
        cached = prompt - 1 if text in self._seen and self.says_cached else 0
        self._seen.add(text)
        under_policy = self.policy is not None and headers != PAST_THE_POLICY
        tokens = min(body.get("max_tokens", 10**6), self.stopped if under_policy else self.full)
        began = loop.time()
        thinking = self._send(prompt - cached, cached, tokens)
        probes = [self._send(1, prompt, 1) for _ in range(self.probes if under_policy else 0)]
        for one in (thinking, *probes):
            await one.done.wait()
        ended = loop.time()
        assert thinking.first is not None
        route = "policy" if under_policy else "passthrough"
        digest = "" if self.policy is None else f"{route}; digest={self.policy.digest[:8]}"
        return Timed(
            ttft=thinking.first - began,
            tpot=(ended - thinking.first) / max(1, tokens - 1),
            e2e=ended - began,
            prompt=prompt,
            cached=cached if self.says_cached else None,
            decoded=tokens + len(probes),
            header=digest if self.header is None else self.header,
        )

    def _send(self, uncached: int, cached: int, tokens: int) -> _Request:
        costs = self.costs
        seconds = costs.request + costs.prefilled * uncached + costs.cached * cached
        request = _Request(seconds, tokens)
        self._waiting.append(request)
        return request

    async def _run(self) -> None:
        """Compute step by step, until there is nothing to do."""
        running: list[_Request] = []
        while self._waiting or running:
            seconds = 0.0
            while self._waiting and len(running) < 32:
                running.append(self._waiting.popleft())
                seconds += running[-1].seconds
            await asyncio.sleep(seconds + self.costs.step + self.costs.each * len(running))
            now = asyncio.get_running_loop().time()
            for one in running:
                one.first = one.first or now
                one.left -= 1
                if not one.left:
                    one.done.set()
            running = [one for one in running if one.left]
