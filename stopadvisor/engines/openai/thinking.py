"""The thinking of one request as early exit needs it: drawn part by part, or streaming on.

Both say when the trace has come to a budget, or to its end before it; what is drawn is the same.
Knows the model; nothing of policies, probes or replies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import anyio

from stopadvisor.engines.errors import first_error
from stopadvisor.engines.openai.model import ServedModel
from stopadvisor.engines.openai.requests import RequestUsage
from stopadvisor.engines.openai.trace import TraceEnd
from stopadvisor.probes.plan import ProbePlan, Prompt

__all__ = ["LiveTrace", "Parts", "Stream", "Thinking", "streaming"]


@dataclass
class LiveTrace:
    """What was drawn of one request, and by what it is drawn."""

    model: ServedModel
    prompt_ids: Sequence[int]
    prompt: Prompt
    plan: ProbePlan
    replica: int
    ids: list[int] = field(default_factory=list)
    """Drawn behind the prompt."""
    requests: list[RequestUsage] = field(default_factory=list)
    end: TraceEnd = field(init=False)

    def __post_init__(self) -> None:
        self.end = self.model.trace_end(self.prompt_ids, self.plan)


class Thinking(Protocol):
    """A trace on its way."""

    async def reach(self, tokens: int | None) -> None:
        """Return when so many tokens are drawn, or when no more will be; None for the end."""
        ...


@dataclass(frozen=True)
class Parts:
    """Draws no further than it is asked to: nothing is thought in vain, each part is a request."""

    trace: LiveTrace

    async def reach(self, tokens: int | None) -> None:
        """Draw so far, if that is not drawn yet."""
        trace = self.trace
        await trace.model.extend(
            trace.prompt_ids,
            trace.ids,
            trace.end,
            trace.prompt,
            trace.plan,
            until=tokens,
            requests=trace.requests,
            replica=trace.replica,
        )


@dataclass
class Stream:
    """One request that thinks on whoever waits for it; made by `streaming`."""

    trace: LiveTrace
    _wanted: int | None = None
    """Tokens that are waited for; None for all of them."""
    _reached: anyio.Event = field(default_factory=anyio.Event)
    _over: bool = False

    async def reach(self, tokens: int | None) -> None:
        """Wait until so many tokens have come."""
        self._wanted, self._reached = tokens, anyio.Event()
        self._tell()
        await self._reached.wait()

    async def draw(self) -> None:
        """Let the tokens come."""
        trace = self.trace
        await trace.model.stream(
            trace.prompt_ids,
            trace.ids,
            trace.end,
            trace.prompt,
            trace.plan,
            requests=trace.requests,
            grown=self._tell,
            replica=trace.replica,
        )
        self._over = True
        self._tell()

    def _tell(self) -> None:
        """Wake who waits, once there is what it waits for: not for every token."""
        if self._over or (self._wanted is not None and len(self.trace.ids) >= self._wanted):
            self._reached.set()


@asynccontextmanager
async def streaming(trace: LiveTrace) -> AsyncIterator[Stream]:
    """Begin a stream; what is still to come when this is left is given up.

    Raises
    ------
    EngineError
        The server refuses, or goes on failing for longer than its retry time-out.
    """
    stream = Stream(trace)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(stream.draw)
            yield stream
            group.cancel_scope.cancel()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
