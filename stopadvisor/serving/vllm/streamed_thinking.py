"""One request that thinks on while probes run beside it; a `live.Thinking`.

Knows when tokens are waited for; not how they are drawn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from stopadvisor.engines.live import Grown
from stopadvisor.engines.trace import Trace

__all__ = ["StreamedThinking"]

_ABANDON_SECONDS = 0.05
"""How long the last tokens of a trace that is given up are waited for."""


@dataclass
class StreamedThinking:
    """One request that thinks on while others wait for it or probe."""

    trace: Trace
    draw: Callable[[Grown], Awaitable[None]]
    """Draws to the trace's end and says when there are more tokens; cancelling it aborts."""
    grown: Grown | None = None
    """Is told, too."""
    wake_at: Callable[[int | None], None] | None = None
    """Is told how many tokens are waited for, None for all, where others may be held back."""
    abandon: Callable[[], Awaitable[None]] | None = None
    """Aborts the request so that what it has drawn still comes; None where it does not."""
    _wanted: int | None = None
    _reached: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Future[None] = field(init=False)

    def __post_init__(self) -> None:
        self._task = asyncio.ensure_future(self.draw(self._more))
        self._task.add_done_callback(lambda _: self._reached.set())

    def _more(self) -> None:
        if self.grown is not None:
            self.grown()
        self._tell()

    def _tell(self) -> None:
        """Wake who waits, once there is what it waits for: not for every token."""
        if self._wanted is not None and len(self.trace.ids) >= self._wanted:
            self._reached.set()
        elif self.wake_at is not None:
            self.wake_at(self._wanted)

    async def reach(self, tokens: int | None) -> None:
        """Wait for this many tokens."""
        if not self._task.done():
            self._wanted = tokens
            self._reached.clear()
            self._tell()
            await self._reached.wait()
        if self._task.done():
            self._task.result()

    async def give_up(self) -> None:
        """Abort the request, and take what it has drawn."""
        if self.abandon is not None and not self._task.done():
            await self.abandon()
            await asyncio.wait({self._task}, timeout=_ABANDON_SECONDS)
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()  # looked at: who is interested in it has had it before
