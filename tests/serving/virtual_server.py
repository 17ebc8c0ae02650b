"""A server in simulated time, and an event loop that skips all waiting.

The server computes in steps, as engines do: each step prefills new requests and decodes one token
for every running one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class _VirtualLoop(asyncio.SelectorEventLoop):
    """Jumps to the next scheduled time."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready:  # type: ignore[attr-defined]
            timers = [at.when() for at in self._scheduled if not at.cancelled()]  # type: ignore[attr-defined]
            self._now = max(self._now, min(timers, default=self._now))
        super()._run_once()  # type: ignore[misc]


def run_virtually(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine in simulated time: sleeping takes none."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(work)


@dataclass
class Costs:
    """Costs in seconds, which the fit must recover."""

    request: float = 2e-3
    prefilled: float = 2e-5
    cached: float = 1e-6
    step: float = 4e-3
    each: float = 2e-4
    """Per step and running request."""

    def decoded(self, batch: int) -> float:
        """Cost per token."""
        return self.step / batch + self.each


@dataclass
class _Request:
    seconds: float
    left: int
    first: float | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class VirtualServer:
    """A chat server that answers with at most `tokens` tokens; stands in for a `Client`."""

    tokens: int = 60
    costs: Costs = field(default_factory=Costs)
    says_cached: bool = True
    context: int | None = 512
    urls: tuple[str, ...] = ("http://virtual/v1",)
    model: str = "tiny-reasoner"
    total: int = 0
    """Tokens of all prompts and replies."""
    _waiting: deque[_Request] = field(default_factory=deque)
    _seen: set[str] = field(default_factory=set)
    _engine: asyncio.Task[None] | None = None

    async def __aenter__(self) -> VirtualServer:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        """Answer as `Client.ask` does."""
        if path == "/models":
            return {"data": [{"id": self.model, "max_model_len": self.context}]}
        assert body is not None
        assert (method, path) == ("POST", "/chat/completions")
        text = body["messages"][0]["content"]
        prompt = 10 + len(text.split())
        cached = prompt - 1 if text in self._seen and self.says_cached else 0
        self._seen.add(text)
        tokens = min(body["max_tokens"], self.tokens)
        await self.decode(prompt - cached, cached, tokens)
        self.total += prompt + tokens
        usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": tokens}
        if self.says_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return {"usage": usage}

    async def decode(self, uncached: int, cached: int, tokens: int) -> float:
        """Prefill and decode; return the time of the first token."""
        if self._engine is None or self._engine.done():
            self._engine = asyncio.create_task(self._run())
        request = self._send(uncached, cached, tokens)
        try:
            await request.done.wait()
        finally:
            request.left = 0  # after a disconnect
        assert request.first is not None
        return request.first

    def _send(self, uncached: int, cached: int, tokens: int) -> _Request:
        costs = self.costs
        seconds = costs.request + costs.prefilled * uncached + costs.cached * cached
        request = _Request(seconds, tokens)
        self._waiting.append(request)
        return request

    async def _run(self) -> None:
        """Compute step by step until no request is left."""
        running: list[_Request] = []
        while self._waiting or running:
            seconds = 0.0
            while self._waiting and len(running) < 32:
                if self._waiting[0].left:
                    running.append(self._waiting[0])
                    seconds += running[-1].seconds
                self._waiting.popleft()
            await asyncio.sleep(seconds + self.costs.step + self.costs.each * len(running))
            now = asyncio.get_running_loop().time()
            for one in running:
                one.first = one.first or now
                one.left = max(0, one.left - 1)
                if not one.left:
                    one.done.set()
            running = [one for one in running if one.left]
