"""Requests that no policy covers: sent on as they came, and their answers returned byte for byte.

A request is tried at another upstream as long as nothing of an answer was seen.  Knows HTTP; no
policy and no JSON but that of its own errors.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from yarl import URL

from stopadvisor.errors import EngineError
from stopadvisor.json_text import parse_json
from stopadvisor.serving.chat_reply import HEADER
from stopadvisor.serving.gateway.pool import NoUpstream, Pool, Upstream
from stopadvisor.serving.gateway.settings import Timeouts

__all__ = ["Forwarder", "Incoming", "Send", "Sent", "error_body"]

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
"""Takes one message of ASGI."""

_HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te"),
        *(b"trailer", b"transfer-encoding", b"upgrade", b"proxy-connection"),
    )
)
"""Belong to one connection (RFC 9110, section 7.6.1)."""
_NOT_SENT_ON = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_NOT_SENT_BACK = _HOP_BY_HOP | {HEADER.lower().encode()}
"""The last is for the gateway alone to say."""
_AUTOMATIC = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
"""What the client library would add."""
_MOST_BYTES = 4 * 2**20
"""Of an answer that is read here."""
_BUSY = {502, 503, 504}
"""Statuses at which another server may do better."""


@dataclass(frozen=True)
class Incoming:
    """One request as it came."""

    method: str
    path: str
    """Behind ``/v1``, with its query, as it was sent."""
    headers: tuple[tuple[bytes, bytes], ...]
    """Names in lower case."""
    body: bytes
    streams: bool = False
    """Its answer comes piece by piece."""

    def header(self, name: bytes) -> str:
        """Return a header's value; empty where there is none."""
        return next((v.decode("latin-1") for n, v in self.headers if n == name), "")


class Sent(Exception):
    """The answer broke off behind its first byte: nothing can be done but to break off, too."""


def error_body(message: str, kind: str) -> bytes:
    """Return an error in the form in which OpenAI's API gives its own."""
    return json.dumps({"error": {"message": message, "type": kind, "code": None}}).encode()


class Forwarder:
    """Sends requests on.

    Parameters
    ----------
    key : str or None
        Of all upstreams; None leaves each request its own ``Authorization``.
    """

    def __init__(self, pool: Pool, timeouts: Timeouts, key: str | None) -> None:
        self._pool, self._timeouts, self._key = pool, timeouts, key
        self._http = aiohttp.ClientSession(
            auto_decompress=False,
            skip_auto_headers=_AUTOMATIC,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect),
            # Shorter than servers keep idle connections: vLLM's close them after 5 s.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
            trust_env=True,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.close()

    async def get(self, url: str) -> Any:
        """Return the JSON of a short answer.

        Raises
        ------
        EngineError
            It is no short one, or lies elsewhere.
        aiohttp.ClientError, ValueError, OSError
            There is none; `TimeoutError` where it did not come in time.
        """
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        async with (
            asyncio.timeout(self._timeouts.connect + 3),
            self._http.get(url, headers=headers, allow_redirects=False) as answer,
        ):
            answer.raise_for_status()
            if answer.status >= 300:
                raise EngineError(f"status {answer.status} instead of an answer")
            body = bytearray()
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > _MOST_BYTES:
                    raise EngineError(f"an answer of more than {_MOST_BYTES} bytes")
            return parse_json(body)

    async def forward(
        self, request: Incoming, extra: Iterable[tuple[bytes, bytes]], send: Send
    ) -> tuple[int, Upstream | None]:
        """Answer a request with what an upstream answers; return the status and who it was."""
        tried: list[Upstream] = []
        status, message = 503, "no upstream is in use"
        again = True
        while True:
            try:
                upstream = self._pool.pick(tried)
            except NoUpstream:
                await _answer(send, status, error_body(message, "upstream_error"), extra)
                return status, None
            with self._pool.at(upstream):
                try:
                    return await self._at(upstream, request, extra, send, tried), upstream
                except _TryAnother:
                    status, message = 503, "the upstream is busy"
                except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
                    self._pool.failed(upstream, gone=True)
                    status, message = 502, "the upstream cannot be reached"
                except TimeoutError:
                    self._pool.failed(upstream)
                    status, message = 504, "the upstream took too long"
                except aiohttp.ServerDisconnectedError:
                    # A connection kept from an earlier request may just have been closed.
                    if again:
                        again = False
                        continue
                    self._pool.failed(upstream)
                    status, message = 502, "the upstream closed the connection"
                except _NoStatus:
                    self._pool.failed(upstream)
                    status, message = 502, "the upstream answered with no status of HTTP"
                except (aiohttp.ClientError, OSError):
                    self._pool.failed(upstream)
                    status, message = 502, "the upstream broke off"
            tried.append(upstream)

    async def _at(
        self,
        upstream: Upstream,
        request: Incoming,
        extra: Iterable[tuple[bytes, bytes]],
        send: Send,
        tried: list[Upstream],
    ) -> int:
        """Ask one upstream; errors are raised before the first byte, `Sent` behind it."""
        loop, limits = asyncio.get_running_loop(), self._timeouts
        renewed = loop.time()
        end = renewed + limits.total
        begun = False
        try:
            async with asyncio.timeout(limits.first if request.streams else limits.total) as limit:
                async with self._http.request(
                    request.method,
                    URL(upstream.url + request.path, encoded=True),
                    headers=self._headers(request),
                    data=request.body or None,
                    allow_redirects=False,
                ) as answer:
                    if not 200 <= answer.status < 600:
                        raise _NoStatus
                    if answer.status in _BUSY:
                        self._pool.failed(upstream)
                        if self._others(upstream, tried):
                            raise _TryAnother
                    pieces = answer.content.iter_any().__aiter__()
                    piece = await anext(pieces, b"")
                    headers = [h for h in answer.raw_headers if h[0].lower() not in _NOT_SENT_BACK]
                    start = {"status": answer.status, "headers": [*headers, *extra]}
                    begun = True
                    await send({"type": "http.response.start", **start})
                    streams = request.streams or answer.content_type == "text/event-stream"
                    if streams:
                        renewed = loop.time()
                        limit.reschedule(min(renewed + limits.between, end))
                    while piece:
                        await send(_piece(piece, more=True))
                        # Not for every piece: a timer costs a tenth of what passing it on does.
                        if streams and loop.time() > renewed + limits.between / 10:
                            renewed = loop.time()
                            limit.reschedule(min(renewed + limits.between, end))
                        piece = await anext(pieces, b"")
                    await send(_piece(b"", more=False))
                    if answer.status not in _BUSY:
                        self._pool.worked(upstream)
                    return answer.status
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            if begun:
                raise Sent from error
            raise

    def _others(self, upstream: Upstream, tried: list[Upstream]) -> bool:
        try:
            self._pool.pick([*tried, upstream])
        except NoUpstream:
            return False
        return True

    def _headers(self, request: Incoming) -> list[tuple[str, str]]:
        own = self._key
        left_out = _NOT_SENT_ON if own is None else _NOT_SENT_ON | {b"authorization"}
        headers = [
            (name.decode("latin-1"), _text(value))
            for name, value in request.headers
            if name not in left_out
        ]
        return headers if own is None else [*headers, ("Authorization", f"Bearer {own}")]


class _TryAnother(Exception):
    """A busy server, where there is another."""


class _NoStatus(Exception):
    """The answer's status is none that ends a request."""


def _text(value: bytes) -> str:
    """Return a header's value so that the client library, which writes UTF-8, sends it again."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _piece(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def _answer(
    send: Send, status: int, body: bytes, extra: Iterable[tuple[bytes, bytes]]
) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    start = {"status": status, "headers": [*headers, *extra]}
    await send({"type": "http.response.start", **start})
    await send(_piece(body, more=False))
