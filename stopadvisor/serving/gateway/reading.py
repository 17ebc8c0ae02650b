"""Takes in requests: how large a body may be, how long it may take, and how much is held at once.

Knows HTTP by ASGI; nothing of what a body says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from stopadvisor.serving.gateway.forward import Incoming, Message
from stopadvisor.serving.gateway.settings import Timeouts

__all__ = ["Gone", "Intake", "Receive", "Refusal"]

_MOST_BYTES = 64 * 2**20
"""Of a request; pictures come within them."""
_AT_ONCE = 4 * _MOST_BYTES
"""Bytes of all bodies that are still coming in."""
_RETRY_AFTER = 5
"""Seconds after which some of them are in."""

Receive = Callable[[], Awaitable[Message]]


class Gone(Exception):
    """The client has left."""


class Refusal(Exception):
    """A request that is not taken in."""

    def __init__(
        self, status: int, text: str, kind: str, header: tuple[bytes, bytes] | None = None
    ) -> None:
        super().__init__(status, text, kind)
        self.status, self.text, self.kind = status, text, kind
        self.headers = () if header is None else (header,)


class Intake:
    """Reads requests, as long as there is memory for them."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._held = 0

    async def read(self, scope: Any, receive: Receive) -> Incoming:
        """Take in a whole request.

        Raises
        ------
        Gone
            It breaks off.
        Refusal
            It is too large, goes on too slowly, or too much else is coming in.
        """
        body = bytearray()
        try:
            await self._fill(body, receive)
        except TimeoutError:
            # The rest of the body is not waited for either: the server closes the connection.
            close = (b"connection", b"close")
            text = "the request's body did not come in time"
            raise Refusal(408, text, "invalid_request", close) from None
        finally:
            self._held -= len(body)
        raw = scope.get("raw_path") or scope["path"].encode()
        path = raw.decode("latin-1").partition("?")[0].removeprefix("/v1")
        query = scope.get("query_string", b"").decode("latin-1")
        path += f"?{query}" if query else ""
        return Incoming(scope["method"], path, tuple(scope["headers"]), bytes(body))

    async def _fill(self, body: bytearray, receive: Receive) -> None:
        loop, limits = asyncio.get_running_loop(), self._timeouts
        end = loop.time() + limits.total
        more = True
        async with asyncio.timeout(limits.between) as limit:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                piece = message.get("body", b"")
                more = message.get("more_body", False)
                body += piece
                self._held += len(piece)
                if len(body) > _MOST_BYTES:
                    text = f"expected at most {_MOST_BYTES} bytes"
                    raise Refusal(413, text, "invalid_request")
                if self._held > _AT_ONCE:
                    after = (b"retry-after", b"%d" % _RETRY_AFTER)
                    text = "too many bodies are coming in"
                    raise Refusal(429, text, "rate_limit_exceeded", after)
                if more:
                    limit.reschedule(min(loop.time() + limits.between, end))
