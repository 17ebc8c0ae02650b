"""Receive requests: check methods and paths, limit bodies, queue excess requests."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from yarl import URL

from stopadvisor.serving.metrics import Metrics, RequestRecord
from stopadvisor.serving.responder import Gone, Receive
from stopadvisor.serving.serve_settings import Timeouts

__all__ = ["Admission", "Incoming", "Intake", "Refusal", "Target"]

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
"""Without CONNECT, and without TRACE, which would return the upstream's key."""
_MOST_BYTES = 64 * 2**20
"""Limit on one body, which may contain images."""
_HELD_BYTES = 4 * _MOST_BYTES
"""Limit on all bodies together; one counts from its first byte until its request is answered."""
_RETRY_AFTER = 5
"""Seconds; by then some requests will have finished."""
_DECODINGS = 4
"""Limit on the layers of percent-encoding in a path; servers decode once or twice."""


class Refusal(Exception):
    """The gateway answers a request with an error."""

    def __init__(
        self, status: int, text: str, kind: str = "invalid_request", retry_after: int | None = None
    ) -> None:
        super().__init__(status, text, kind)
        self.status, self.text, self.kind = status, text, kind
        self.headers: list[tuple[bytes, bytes]] = []
        if retry_after is not None:
            self.headers.append((b"retry-after", b"%d" % retry_after))


@dataclass(frozen=True)
class Target:
    """A checked path below the base URL; every URL at an upstream is built from one."""

    path: str
    """Starts with a slash and stays below the base URL; percent-encoded as sent."""
    query: str = ""
    """Without the question mark."""

    def __post_init__(self) -> None:
        if not self.path.startswith("/") or not _stays_below(self.path):
            raise Refusal(404, "no such path")

    def at(self, base_url: str) -> URL:
        """Return the URL at an upstream; no path can change scheme, host or port."""
        base = urlsplit(base_url)
        return URL.build(
            scheme=base.scheme,
            authority=base.netloc,
            path=base.path + self.path,
            query_string=self.query,
            encoded=True,
        )


def _stays_below(path: str) -> bool:
    """Whether a path cannot leave the base URL, however often a server decodes it."""
    decoded = path.encode()
    for _ in range(_DECODINGS):
        encoded, decoded = decoded, unquote_to_bytes(decoded)
        if decoded == encoded:
            break
    else:
        return False
    # Some servers strip parameters from segments (`..;/`); some take a backslash for a slash.
    segments = (segment.partition(b";")[0] for segment in re.split(rb"[/\\]", decoded))
    is_plain = min(decoded) >= 0x20 and 0x7F not in decoded
    return is_plain and all(segment.strip() not in (b".", b"..") for segment in segments)


@dataclass
class Incoming:
    """A received request."""

    method: str
    target: Target
    headers: tuple[tuple[bytes, bytes], ...]
    """Names in lower case."""
    body: bytearray
    streams: bool = False
    """The client asks for a streamed reply."""
    ends: float = math.inf
    """When its reply must be complete, by the event loop's clock; set once it leaves the queue."""

    @property
    def is_over(self) -> bool:
        """Whether its time has run out."""
        return asyncio.get_running_loop().time() >= self.ends

    def header(self, name: bytes) -> str:
        """Return a header's value; empty if it is missing."""
        return next((v.decode("latin-1") for n, v in self.headers if n == name), "")


class Intake:
    """Receives requests; all their bodies share one memory budget."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._held = 0

    @asynccontextmanager
    async def request(self, scope: Any, receive: Receive) -> AsyncIterator[Incoming]:
        """Receive a whole request and hold its body until the block ends.

        Raises
        ------
        Gone
            The client disconnects.
        Refusal
            The path is not below ``/v1``, or the body is too large, too slow or over the budget.
        """
        if scope["method"] not in _METHODS:
            raise Refusal(405, f"expected one of {', '.join(sorted(_METHODS))}")
        raw = scope.get("raw_path") or scope["path"].encode()
        prefix, path = raw[:3], raw[3:]
        if prefix != b"/v1" or not (path + scope.get("query_string", b"")).isascii():
            raise Refusal(404, "no such path")
        target = Target(path.decode(), scope.get("query_string", b"").decode())
        body = bytearray()
        try:
            await self._fill(body, receive)
            yield Incoming(scope["method"], target, tuple(scope["headers"]), body)
        finally:
            self._held -= len(body)

    async def _fill(self, body: bytearray, receive: Receive) -> None:
        loop, limits = asyncio.get_running_loop(), self._timeouts
        end = loop.time() + limits.total
        more = True
        try:
            async with asyncio.timeout(limits.between) as limit:
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Gone
                    more, piece = message.get("more_body", False), message.get("body", b"")
                    if len(body) + len(piece) > _MOST_BYTES:
                        raise Refusal(413, f"expected at most {_MOST_BYTES} bytes")
                    if self._held + len(piece) > _HELD_BYTES:
                        text = "too many bodies are held"
                        raise Refusal(429, text, "rate_limit_exceeded", _RETRY_AFTER)
                    body += piece
                    self._held += len(piece)
                    if more:
                        limit.reschedule(min(loop.time() + limits.between, end))
        except TimeoutError:
            late = Refusal(408, "the request's body did not come in time")
            late.headers.append((b"connection", b"close"))  # or uvicorn would read on
            raise late from None


# --- Admission ------------------------------------------------------------------------------------


_WAITING_PER_PLACE = 2
"""Requests that may wait for each place; the next is answered with 429."""


class Admission:
    """Limits concurrent and waiting requests; first come, first served.

    `make_room` is called when a request has to wait, to cancel background work.
    """

    def __init__(self, places: int, metrics: Metrics, make_room: Callable[[], None]) -> None:
        self._free = asyncio.Semaphore(places)
        self._places, self._metrics, self._make_room = places, metrics, make_room
        self._waiting = 0

    @property
    def is_crowded(self) -> bool:
        """Whether requests are waiting."""
        return self._waiting > 0

    @asynccontextmanager
    async def place(self, record: RequestRecord) -> AsyncIterator[None]:
        """Wait for a place and hold it for the block; raise `Refusal` if the queue is full."""
        began = time.perf_counter()
        if self._free.locked():
            self._make_room()
            if self._waiting >= _WAITING_PER_PLACE * self._places:
                raise Refusal(429, "the queue is full", "rate_limit_exceeded", _RETRY_AFTER)
            self._waiting += 1
            self._metrics.waiting.set(self._waiting)
            try:
                await self._free.acquire()
            finally:
                self._waiting -= 1
                self._metrics.waiting.set(self._waiting)
        else:
            await self._free.acquire()
        record.queue_seconds = time.perf_counter() - began
        try:
            with self._metrics.in_flight.track_inprogress():
                yield
        finally:
            self._free.release()
