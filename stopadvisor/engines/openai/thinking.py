"""The thinking of one request as early exit needs it: drawn part by part, or streaming on.

Both say when the trace has come to a budget, or to its end before it; what is drawn is the same.
Knows the model; nothing of policies, probes or replies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import anyio

from stopadvisor.engines.errors import first_error
from stopadvisor.engines.openai.model import ServedModel
from stopadvisor.engines.openai.trace import Trace

__all__ = ["Parts", "Stream", "Thinking", "streaming"]


class Thinking(Protocol):
    """A trace on its way."""

    async def reach(self, tokens: int | None) -> None:
        """Return when so many tokens are drawn, or when no more will be; None for the end."""
        ...


@dataclass(frozen=True)
class Parts:
    """Draws no further than it is asked to: nothing is thought in vain, each part is a request."""

    model: ServedModel
    trace: Trace

    async def reach(self, tokens: int | None) -> None:
        """Draw so far, if that is not drawn yet."""
        await self.model.extend(self.trace, until=tokens)


@dataclass
class Stream:
    """One request that thinks on whoever waits for it; made by `streaming`."""

    model: ServedModel
    trace: Trace
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
        await self.model.stream(self.trace, self._tell)
        self._over = True
        self._tell()

    def _tell(self) -> None:
        """Wake who waits, once there is what it waits for: not for every token."""
        if self._over or (self._wanted is not None and len(self.trace.ids) >= self._wanted):
            self._reached.set()


@asynccontextmanager
async def streaming(model: ServedModel, trace: Trace) -> AsyncIterator[Stream]:
    """Begin a stream; what is still to come when this is left is given up.

    Raises
    ------
    EngineError
        The server refuses, or goes on failing for longer than its retry time-out.
    """
    stream = Stream(model, trace)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(stream.draw)
            yield stream
            group.cancel_scope.cancel()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
