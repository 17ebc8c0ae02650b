"""Forward requests to an upstream, and its replies to the client, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from stopadvisor.engines.http.key import Key
from stopadvisor.ground.constants import POLICY_HEADER
from stopadvisor.ground.errors import EngineError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.serving.gateway.intake import Incoming, Refusal, Target
from stopadvisor.serving.gateway.pool import Pool, Upstream
from stopadvisor.serving.responder import Message, Send
from stopadvisor.serving.serve_settings import Timeouts

__all__ = ["BrokenReply", "Forwarder"]

_Headers = Iterable[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te"),
        *(b"trailer", b"transfer-encoding", b"upgrade", b"proxy-connection"),
    )
)
"""Headers of one connection (RFC 9110, section 7.6.1); `Connection` can name more."""
_NOT_FORWARDED = frozenset((b"host", b"content-length", b"expect"))
_NOT_RETURNED = frozenset((POLICY_HEADER.lower().encode(),))
"""An upstream must not forge the gateway's own header."""
_AUTOMATIC = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
"""Headers that aiohttp would add."""
_MOST_BYTES = 4 * 2**20
"""Limit on the size of a list of models."""
_BUSY = {502, 503, 504}
"""Statuses after which another upstream is tried."""
_UNREACHABLE = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_DISCONNECTED = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)
"""Errors of a connection closed or reset without an answer; some errors of connecting derive from
them."""
_STREAM_PATHS = {"/chat/completions", "/completions"}
"""Their streams end with ``data: [DONE]``."""


class BrokenReply(Exception):
    """The upstream failed after bytes were sent; the client's stream must be cut too."""


class _TryAnother(Exception):
    """The upstream is busy, and there is another."""


class _Unfit(Exception):
    """The reply cannot be forwarded; the message says why."""


class Forwarder:
    """Forwards requests, with the upstreams' `key` or else each request's ``Authorization``."""

    def __init__(self, pool: Pool, timeouts: Timeouts, key: Key | None) -> None:
        self._pool, self._timeouts, self._key = pool, timeouts, key
        self._proxies = {upstream: proxy_of(upstream.url) for upstream in pool.all}
        # vLLM closes idle connections after 5 s.
        self._http = _session(timeouts, keepalive_timeout=4.0)
        self._fresh = _session(timeouts, force_close=True)
        """Opens a connection for each request."""

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.close()
        await self._fresh.close()

    async def get(self, upstream: Upstream, path: str) -> Any:
        """Return a short JSON reply.

        Raises
        ------
        EngineError
            The reply is too long, or a redirection.
        aiohttp.ClientError, ValueError, OSError
            There is no such reply; a `TimeoutError` if it is late.
        """
        headers = [] if self._key is None else [("Authorization", self._key.header)]
        async with (
            asyncio.timeout(self._timeouts.connect + 3),
            self._ask("GET", upstream, Target(path), headers) as answer,
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

    def _ask(
        self,
        method: str,
        upstream: Upstream,
        target: Target,
        headers: list[tuple[str, str]],
        body: bytearray | None = None,
        *,
        fresh: bool = False,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return (self._fresh if fresh else self._http).request(
            method,
            target.at(upstream.url),
            headers=headers,
            data=body,
            allow_redirects=False,
            proxy=self._proxies[upstream],
        )

    async def forward(self, request: Incoming, send: Send) -> Upstream:
        """Answer a request with an upstream's reply; return the upstream.

        Until the first byte is sent to the client or the request's time has run out, another
        upstream may be tried.

        Raises
        ------
        Refusal
            No upstream answers in time.
        BrokenReply
            An upstream failed after its first byte.
        """
        tried: list[Upstream] = []
        status, message = 503, "no upstream is in use"
        again = True
        while (upstream := self._pool.pick(tried)) is not None:
            tried.append(upstream)
            with self._pool.at(upstream):
                try:
                    await self._at(upstream, request, send, tried, fresh=not again)
                    return upstream
                except _TryAnother:
                    status, message = 503, "the upstream is busy"
                except (aiohttp.ClientError, OSError, _Unfit) as error:
                    if again and self._may_be_well(error, tried):
                        again = False
                        tried.remove(upstream)
                        continue
                    is_refused = isinstance(error, aiohttp.ClientConnectorError)
                    self._pool.failed(upstream, gone=is_refused)
                    status, message = 502, "the upstream broke off"
                    if isinstance(error, _UNREACHABLE):
                        message = "the upstream cannot be reached"
                    elif isinstance(error, TimeoutError):
                        status, message = 504, "the upstream took too long"
                    elif isinstance(error, _DISCONNECTED):
                        message = "the upstream closed the connection"
                    elif isinstance(error, _Unfit):
                        message = str(error)
            if request.is_over:
                break
        raise Refusal(status, message, "upstream_error")

    def _may_be_well(self, error: Exception, tried: list[Upstream]) -> bool:
        """Whether the last upstream tried may answer the request on a new connection.

        It may just have closed an idle one.  Or a connection seemed late because this process got
        no CPU time for some seconds: then it is tried again if there is no other upstream.
        """
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return self._pool.pick(tried) is None
        return isinstance(error, _DISCONNECTED) and not isinstance(error, _UNREACHABLE)

    async def _at(
        self,
        upstream: Upstream,
        request: Incoming,
        send: Send,
        tried: list[Upstream],
        *,
        fresh: bool,
    ) -> None:
        """Forward to one upstream; raise errors before the first byte, `BrokenReply` after it."""
        loop, limits = asyncio.get_running_loop(), self._timeouts
        mask = None if self._key is None else self._key.mask()
        renewed = loop.time()
        end = request.ends
        begins_by = min(renewed + limits.first, end) if request.streams else end
        begun = False
        try:
            async with (
                asyncio.timeout_at(begins_by) as limit,
                self._ask(
                    request.method,
                    upstream,
                    request.target,
                    self._headers(request),
                    request.body or None,
                    fresh=fresh,
                ) as answer,
            ):
                if not 200 <= answer.status < 600:
                    raise _Unfit("the upstream answered with an invalid HTTP status")
                encoding = answer.headers.get("Content-Encoding", "identity")
                if mask is not None and encoding.lower() != "identity":
                    raise _Unfit("the upstream answered in an encoding that was not asked for")
                if answer.status in _BUSY:
                    self._pool.failed(upstream)
                    if self._pool.pick(tried) is not None:
                        raise _TryAnother
                pieces = answer.content.iter_any().__aiter__()
                piece = await anext(pieces, b"")
                headers = [
                    (name, value if mask is None else mask.whole(value))
                    for name, value in _end_to_end(answer.raw_headers, _not_returned(answer.status))
                ]
                begun = True
                start = {"type": "http.response.start", "status": answer.status}
                await send({**start, "headers": headers})
                streams = request.streams or answer.content_type == "text/event-stream"
                if streams:
                    renewed = loop.time()
                    limit.reschedule(min(renewed + limits.between, end))
                ends_openly, tail = _ends_openly(request, answer), b""
                while piece:
                    tail = (tail + piece[-32:])[-32:]
                    shown = piece if mask is None else mask.take(piece)
                    if shown:
                        await send(_piece(shown, more=True))
                    # Not for every piece: that would cost a tenth of forwarding it.
                    if streams and loop.time() > renewed + limits.between / 10:
                        renewed = loop.time()
                        limit.reschedule(min(renewed + limits.between, end))
                    piece = await anext(pieces, b"")
                if ends_openly and not tail.rstrip().endswith(b"[DONE]"):
                    raise aiohttp.ClientPayloadError("the stream ended early")
                await send(_piece(b"" if mask is None else mask.rest(), more=False))
                if answer.status not in _BUSY:
                    upstream.failures = 0
        except (aiohttp.ClientError, OSError) as error:  # including TimeoutError
            if begun:
                raise BrokenReply from error
            raise

    def _headers(self, request: Incoming) -> list[tuple[str, str]]:
        left_out = _NOT_FORWARDED
        if self._key is not None:  # in a compressed reply the key could not be masked
            left_out |= {b"authorization", b"accept-encoding"}
        headers = [
            (name.decode("latin-1"), _text(value))
            for name, value in _end_to_end(request.headers, left_out)
        ]
        if self._key is not None:
            headers += [("Authorization", self._key.header), ("Accept-Encoding", "identity")]
        return headers


def _session(timeouts: Timeouts, **connections: Any) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        auto_decompress=False,
        skip_auto_headers=_AUTOMATIC,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect),
        connector=aiohttp.TCPConnector(limit=0, **connections),
        # True would add credentials from the operator's ~/.netrc to requests without a key.
        trust_env=False,
    )


def proxy_of(upstream_url: str) -> str | None:
    """Return the proxy for an upstream, with its credentials, from the environment."""
    upstream = urlsplit(upstream_url)
    proxy = getproxies().get(upstream.scheme)
    if not proxy or proxy_bypass(upstream.hostname or ""):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    return proxy if urlsplit(proxy).scheme == "http" else None  # aiohttp supports no others


def _ends_openly(request: Incoming, answer: aiohttp.ClientResponse) -> bool:
    """Whether only ``[DONE]`` tells a whole stream from one whose server was killed."""
    framed = {"Content-Length", "Transfer-Encoding", "Content-Encoding"}
    is_stream = answer.status == 200 and answer.content_type == "text/event-stream"
    is_named = request.target.path in _STREAM_PATHS
    return is_stream and is_named and not any(name in answer.headers for name in framed)


def _end_to_end(headers: _Headers, left_out: Collection[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the headers, names in lower case, without the connection's and those left out."""
    headers = [(name.lower(), value) for name, value in headers]
    named = {
        token.strip().lower()
        for name, value in headers
        if name == b"connection"
        for token in value.split(b",")
    }
    return [h for h in headers if h[0] not in _HOP_BY_HOP | named and h[0] not in left_out]


def _not_returned(status: int) -> frozenset[bytes]:
    # A reply of these statuses has no body; 304 may give the length of another one's.
    return _NOT_RETURNED | {b"content-length"} if status in (204, 304) else _NOT_RETURNED


def _text(value: bytes) -> str:
    """Decode a header's value so that aiohttp, which encodes as UTF-8, sends the same bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _piece(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}
