"""How many requests are answered at once, and how many may wait.  Knows no request."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from stopadvisor.serving.metrics import Metrics, RequestRecord

__all__ = ["Admission", "QueueFull"]

_LONGEST = 60
"""Seconds a client is sent away for at most."""
_WEIGHT = 0.05
"""Of the newest request in the running mean of durations."""


class QueueFull(Exception):
    """No place is left to wait in."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after
        """Seconds after which a place may be free."""


class Admission:
    """A limited number of requests at once and a limited queue, first come, first served."""

    def __init__(self, places: int, queue: int, metrics: Metrics) -> None:
        self._free = asyncio.Semaphore(places)
        self._places, self._queue, self._metrics = places, queue, metrics
        self._waiting = 0
        self._seconds = 1.0
        self.make_room: Callable[[], None] = lambda: None
        """Is called when a request has to wait: what nobody waits for is given up."""

    @property
    def is_crowded(self) -> bool:
        """Whether requests wait."""
        return self._waiting > 0

    @asynccontextmanager
    async def place(self, record: RequestRecord) -> AsyncIterator[None]:
        """Hold a place, after waiting for one.

        Raises
        ------
        QueueFull
            As many are waiting as may.
        """
        began = time.perf_counter()
        if self._free.locked():
            self.make_room()
            if self._waiting >= self._queue:
                wait = math.ceil(self._seconds * (1 + self._waiting) / self._places)
                raise QueueFull(max(1, min(wait, _LONGEST)))
            self._waiting += 1
            self._metrics.waiting.set(self._waiting)
            try:
                await self._free.acquire()
            finally:
                self._waiting -= 1
                self._metrics.waiting.set(self._waiting)
        else:
            await self._free.acquire()
        entered = time.perf_counter()
        record.queue_seconds = entered - began
        try:
            with self._metrics.running():
                yield
        finally:
            self._free.release()
            spent = time.perf_counter() - entered
            self._seconds += _WEIGHT * (spent - self._seconds)
