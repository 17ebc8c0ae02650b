"""Requests that no policy covers: sent on as they came, and their answers returned byte for byte.

A request is tried at another upstream as long as nothing of an answer was seen.  Knows HTTP; no
policy and no JSON but that of its own errors.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from stopadvisor.engines.http.key import Key
from stopadvisor.ground.errors import EngineError
from stopadvisor.ground.json_text import parse_json
from stopadvisor.serving.chat_reply import HEADER
from stopadvisor.serving.gateway.gateway_settings import Timeouts
from stopadvisor.serving.gateway.intake import Incoming, Message, Target
from stopadvisor.serving.gateway.pool import NoUpstream, Pool, Upstream

__all__ = ["BrokenReply", "Forwarder", "Send", "error_body"]

Send = Callable[[Message], Awaitable[None]]
"""Takes one message of ASGI."""
_Headers = Iterable[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te"),
        *(b"trailer", b"transfer-encoding", b"upgrade", b"proxy-connection"),
    )
)
"""Belong to one connection (RFC 9110, section 7.6.1), as do headers that `Connection` names."""
_NOT_SENT_ON = frozenset((b"host", b"content-length", b"expect"))
_NOT_SENT_BACK = frozenset((HEADER.lower().encode(),))
"""For the gateway alone to say."""
_AUTOMATIC = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
"""What the client library would add."""
_MOST_BYTES = 4 * 2**20
"""Of an answer that is read here."""
_BUSY = {502, 503, 504}
"""Statuses at which another server may do better."""


class BrokenReply(Exception):
    """The upstream failed after bytes were sent; the client's stream must be cut too."""


def error_body(message: str, kind: str) -> bytes:
    """Return an error in the form in which OpenAI's API gives its own."""
    return json.dumps({"error": {"message": message, "type": kind, "code": None}}).encode()


class Forwarder:
    """Sends requests on.

    Parameters
    ----------
    key : Key or None
        Of all upstreams; None leaves each request its own ``Authorization``.
    """

    def __init__(self, pool: Pool, timeouts: Timeouts, key: Key | None) -> None:
        self._pool, self._timeouts, self._key = pool, timeouts, key
        self._proxies = {upstream: _Proxy.of(upstream.url) for upstream in pool.all}
        self._http = aiohttp.ClientSession(
            auto_decompress=False,
            skip_auto_headers=_AUTOMATIC,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect),
            # Shorter than servers keep idle connections: vLLM's close them after 5 s.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
            # It would sign requests that come without a key from the operator's ~/.netrc.
            trust_env=False,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.close()

    async def get(self, upstream: Upstream, path: str) -> Any:
        """Return the JSON of a short answer.

        Raises
        ------
        EngineError
            It is no short one, or lies elsewhere.
        aiohttp.ClientError, ValueError, OSError
            There is none; `TimeoutError` where it did not come in time.
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
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        url, proxy = target.at(upstream.url), self._proxies[upstream]
        signed = [] if proxy.signed is None else [("Proxy-Authorization", proxy.signed)]
        is_tunnel = url.scheme == "https"
        return self._http.request(
            method,
            url,
            headers=headers if is_tunnel else [*headers, *signed],
            data=body,
            allow_redirects=False,
            proxy=proxy.url,
            proxy_headers=signed if is_tunnel else None,
        )

    async def forward(
        self, request: Incoming, extra: _Headers, send: Send
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
                except _Unfit as error:
                    self._pool.failed(upstream)
                    status, message = 502, str(error)
                except (aiohttp.ClientError, OSError):
                    self._pool.failed(upstream)
                    status, message = 502, "the upstream broke off"
            tried.append(upstream)

    async def _at(
        self,
        upstream: Upstream,
        request: Incoming,
        extra: _Headers,
        send: Send,
        tried: list[Upstream],
    ) -> int:
        """Ask one upstream; errors are raised before the first byte, `BrokenReply` after it."""
        loop, limits = asyncio.get_running_loop(), self._timeouts
        renewed = loop.time()
        end = renewed + limits.total
        begun = False
        try:
            async with asyncio.timeout(limits.first if request.streams else limits.total) as limit:
                async with self._ask(
                    request.method,
                    upstream,
                    request.target,
                    self._headers(request),
                    request.body or None,
                ) as answer:
                    if not 200 <= answer.status < 600:
                        raise _Unfit("the upstream answered with no status of HTTP")
                    if self._key is not None and _is_encoded(answer):
                        raise _Unfit("the upstream answered in an encoding that was not asked for")
                    if answer.status in _BUSY:
                        self._pool.failed(upstream)
                        if self._others(upstream, tried):
                            raise _TryAnother
                    pieces = answer.content.iter_any().__aiter__()
                    piece = await anext(pieces, b"")
                    mask = None if self._key is None else self._key.mask()
                    start = {
                        "status": answer.status,
                        "headers": [
                            *(
                                (name, value if mask is None else mask.whole(value))
                                for name, value in _end_to_end(answer.raw_headers, _NOT_SENT_BACK)
                            ),
                            *extra,
                        ],
                    }
                    begun = True
                    await send({"type": "http.response.start", **start})
                    streams = request.streams or answer.content_type == "text/event-stream"
                    if streams:
                        renewed = loop.time()
                        limit.reschedule(min(renewed + limits.between, end))
                    while piece:
                        shown = piece if mask is None else mask.take(piece)
                        if shown:
                            await send(_piece(shown, more=True))
                        # Not for every piece: a timer costs a tenth of what passing it on does.
                        if streams and loop.time() > renewed + limits.between / 10:
                            renewed = loop.time()
                            limit.reschedule(min(renewed + limits.between, end))
                        piece = await anext(pieces, b"")
                    await send(_piece(b"" if mask is None else mask.rest(), more=False))
                    if answer.status not in _BUSY:
                        self._pool.worked(upstream)
                    return answer.status
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            if begun:
                raise BrokenReply from error
            raise

    def _others(self, upstream: Upstream, tried: list[Upstream]) -> bool:
        try:
            self._pool.pick([*tried, upstream])
        except NoUpstream:
            return False
        return True

    def _headers(self, request: Incoming) -> list[tuple[str, str]]:
        left_out = _NOT_SENT_ON
        if self._key is not None:  # in a compressed answer it could not be masked
            left_out |= {b"authorization", b"accept-encoding"}
        headers = [
            (name.decode("latin-1"), _text(value))
            for name, value in _end_to_end(request.headers, left_out)
        ]
        if self._key is not None:
            headers += [("Authorization", self._key.header), ("Accept-Encoding", "identity")]
        return headers


class _TryAnother(Exception):
    """A busy server, where there is another."""


class _Unfit(Exception):
    """An answer that cannot be passed on; the text says why."""


@dataclass(frozen=True)
class _Proxy:
    """The proxy that the environment names for an upstream."""

    url: str | None
    signed: str | None
    """Value of its header ``Proxy-Authorization``."""

    @classmethod
    def of(cls, upstream_url: str) -> _Proxy:
        upstream = urlsplit(upstream_url)
        found = getproxies().get(upstream.scheme)
        if not found or proxy_bypass(upstream.hostname or ""):
            return cls(None, None)
        parts = urlsplit(found if "://" in found else f"http://{found}")
        if parts.scheme != "http":
            return cls(None, None)  # the client library speaks to no other
        place = parts.netloc.rpartition("@")[2]
        if parts.username is None:
            return cls(f"{parts.scheme}://{place}", None)
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        return cls(f"{parts.scheme}://{place}", f"Basic {base64.b64encode(user).decode()}")


def _end_to_end(headers: _Headers, left_out: Collection[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the headers that are not for one connection alone."""
    headers = [(name.lower(), value) for name, value in headers]
    named = {
        token.strip().lower()
        for name, value in headers
        if name == b"connection"
        for token in value.split(b",")
    }
    return [h for h in headers if h[0] not in _HOP_BY_HOP | named and h[0] not in left_out]


def _is_encoded(answer: aiohttp.ClientResponse) -> bool:
    return answer.headers.get("Content-Encoding", "identity").lower() != "identity"


def _text(value: bytes) -> str:
    """Return a header's value so that the client library, which writes UTF-8, sends it again."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _piece(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def _answer(send: Send, status: int, body: bytes, extra: _Headers) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    start = {"status": status, "headers": [*headers, *extra]}
    await send({"type": "http.response.start", **start})
    await send(_piece(body, more=False))
