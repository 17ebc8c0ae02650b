"""The gateway's upstreams: which are in use, which gets the next request, when one comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from stopadvisor.engines.http.client import Unreachable
from stopadvisor.ground.errors import EngineError, StopAdvisorError
from stopadvisor.serving.metrics import Log, Metrics

__all__ = ["Pool", "Upstream"]

_FAILURES = 3
"""Consecutive failures after which a server that accepts connections is checked."""
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
"""Seconds between checks of a server out of use, at first and at most; the pause doubles."""


@dataclass(eq=False)
class Upstream:
    """One server."""

    number: int
    url: str
    """Base URL, without a trailing slash."""
    in_flight: int = 0
    failures: int = 0
    """Consecutive failures."""
    is_up: bool = False
    refused: StopAdvisorError | None = None
    """Why the last check failed."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Wakes `Pool.supervise` when the server is taken out of use or doubted."""

    @property
    def is_doubted(self) -> bool:
        """Whether the server is in use but has failed often enough to be checked."""
        return self.is_up and self.failures >= _FAILURES

    def __lt__(self, other: Upstream) -> bool:
        """Whether to prefer this server: fewest requests in flight first, doubtful ones last."""
        return (self.is_doubted, self.in_flight) < (other.is_doubted, other.in_flight)


class Pool:
    """All upstreams.

    A server that refuses connections is taken out of use at once.  One that fails several requests
    is checked first: the requests may be at fault.  A server comes back only after a check finds
    the same model there; client requests never test it.

    `check` opens a server again and checks it against the policies; it raises if that fails.
    `glance` says whether a server still lists what it did when it was opened; it raises
    `EngineError` or `TimeoutError` if the server does not answer.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        check: Callable[[Upstream], Awaitable[None]],
        glance: Callable[[Upstream], Awaitable[bool]],
        every: float,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self.all = tuple(Upstream(number, url) for number, url in enumerate(urls))
        self._check, self._glance, self._every = check, glance, every
        self._metrics, self._log = metrics, log
        self._checked = asyncio.Event()
        for upstream in self.all:
            self._export(upstream)

    @property
    def is_ready(self) -> bool:
        """Whether any server is in use."""
        return any(upstream.is_up for upstream in self.all)

    def pick(self, tried: Collection[Upstream]) -> Upstream | None:
        """Return the server to ask next; None if all in use were tried."""
        return min((u for u in self.all if u.is_up and u not in tried), default=None)

    @contextmanager
    def at(self, upstream: Upstream) -> Iterator[None]:
        """Count a request in flight at a server until the block ends."""
        gauge = self._metrics.upstream_in_flight.labels(str(upstream.number))
        upstream.in_flight += 1
        gauge.set(upstream.in_flight)
        try:
            yield
        finally:
            upstream.in_flight -= 1
            gauge.set(upstream.in_flight)

    def failed(self, upstream: Upstream, *, gone: bool = False) -> None:
        """Count a failure before the first byte; `gone` if the server refuses connections."""
        upstream.failures += 1
        if upstream.is_up and gone:
            self.take_out(upstream, "unreachable")
        elif upstream.is_doubted:
            upstream.changed.set()

    async def supervise(self, upstream: Upstream) -> None:
        """Check a server until it passes, watch it while it is in use, start over; forever."""
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._check(upstream)
            except Exception as error:  # noqa: BLE001 - in any case it is checked again
                why = error if isinstance(error, StopAdvisorError) else None
                upstream.refused = why or EngineError(type(error).__name__)
                message = str(upstream.refused)
                self._log.write("upstream-check", upstream=upstream.number, message=message)
                self._checked.set()
                if upstream.is_up:
                    self.take_out(upstream, "failing")
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            pause = _FIRST_PAUSE
            upstream.is_up, upstream.failures, upstream.refused = True, 0, None
            upstream.changed.clear()
            self._checked.set()
            self._export(upstream)
            self._log.write("upstream-up", upstream=upstream.number)
            while upstream.is_up and not upstream.is_doubted:
                await self._watch(upstream)
            if upstream.is_doubted:  # else bad requests could keep it busy with checks
                await asyncio.sleep(pause)

    async def _watch(self, upstream: Upstream) -> None:
        """Wait for a failure or the next regular look; take the server out if it changed."""
        try:
            async with asyncio.timeout(self._every):
                await upstream.changed.wait()
                upstream.changed.clear()
                return
        except TimeoutError:
            pass
        try:
            if not await self._glance(upstream):
                self.take_out(upstream, "changed")
        except TimeoutError:
            self.failed(upstream)  # busy, perhaps
        except EngineError:
            self.failed(upstream, gone=True)

    async def wait_ready(self, retry_timeout: float) -> None:
        """Wait until every server has been checked once and one is in use.

        Raises `StopAdvisorError` if a server serves something else, or none is up in time.
        """
        try:
            async with asyncio.timeout(retry_timeout):
                while True:
                    self._checked.clear()
                    for upstream in self.all:
                        if upstream.refused and not isinstance(upstream.refused, Unreachable):
                            raise upstream.refused
                    if self.is_ready and all(u.is_up or u.refused for u in self.all):
                        return
                    await self._checked.wait()
        except TimeoutError:
            why = next((u.refused for u in self.all if u.refused), None)
            urls = ", ".join(upstream.url for upstream in self.all)
            raise why or EngineError(f"no answer for {retry_timeout:g} s from {urls}") from None

    def take_out(self, upstream: Upstream, why: str) -> None:
        """Send a server no more requests until it passes a check."""
        upstream.is_up = False
        upstream.changed.set()
        self._export(upstream)
        self._log.write("upstream-down", upstream=upstream.number, reason=why)

    def _export(self, upstream: Upstream) -> None:
        self._metrics.upstream_up.labels(str(upstream.number)).set(upstream.is_up)
