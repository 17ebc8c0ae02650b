"""The thinking of one request, as early exit needs it: resumed part by part, or streaming on.

Both wait until the trace has so many tokens, or is over; the tokens are the same.  Knows the model;
nothing of policies, probes or replies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from stopadvisor.engines.errors import first_error
from stopadvisor.engines.openai.model import ServedModel
from stopadvisor.engines.openai.trace import Trace

__all__ = ["ResumedThinking", "StreamedThinking", "Thinking", "streaming"]


@dataclass(frozen=True)
class ResumedThinking:
    """Thinks no further than it is asked to, so nothing is discarded; each part is a request."""

    model: ServedModel
    trace: Trace
    grown: Callable[[], None] | None = None
    """Called when there are more tokens; the parts are streamed for it."""

    async def reach(self, tokens: int | None) -> None:
        """Return when so many tokens are drawn, or when no more will be; None for the end."""
        if self.grown is None:
            await self.model.extend(self.trace, until=tokens)
        else:
            await self.model.stream(self.trace, self.grown, until=tokens)


@dataclass
class StreamedThinking:
    """One request that thinks on while others wait for it or probe; made by `streaming`."""

    model: ServedModel
    trace: Trace
    grown: Callable[[], None] | None = None
    """Called when there are more tokens."""
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
        await self.model.stream(self.trace, self._more)
        self._over = True
        self._tell()

    def _more(self) -> None:
        if self.grown is not None:
            self.grown()
        self._tell()

    def _tell(self) -> None:
        """Wake who waits, once there is what it waits for: not for every token."""
        if self._over or (self._wanted is not None and len(self.trace.ids) >= self._wanted):
            self._reached.set()


Thinking = ResumedThinking | StreamedThinking
"""A trace on its way."""


@asynccontextmanager
async def streaming(
    model: ServedModel, trace: Trace, grown: Callable[[], None] | None = None
) -> AsyncIterator[StreamedThinking]:
    """Begin a stream; what is still to come when this is left is given up."""
    stream = StreamedThinking(model, trace, grown)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(stream.draw)
            yield stream
            group.cancel_scope.cancel()
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
