"""Connections of clients: how long and how large a request's head may be, and how many wait.

A connection waits until its request's head is complete, and again while it is kept alive.  Where
there are too many, the one that has waited longest is closed, so that half requests cost those who
send them.  Knows uvicorn; nothing of requests.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

__all__ = ["ACCEPTED_AT_ONCE", "ClientConnection", "ConnectionLimit", "most_connections"]

HEAD_SECONDS = 10.0
"""For a request's head, from its first byte; of a new connection, from its beginning."""
HEAD_BYTES = 64 * 2**10
"""Of a head, of a chunk's extensions or of trailers."""
ACCEPTED_AT_ONCE = 64
"""Connections that are accepted before any of them can be closed."""
_OTHER_FILES = 128
"""Files and sockets of the process, connections of clients and to upstreams left out."""
_MOST_FILES = 2**16


def most_connections(upstream_connections: int) -> int:
    """Allow the process as many files as it may have; return how many clients may connect."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= files:
        files = _MOST_FILES if soft == resource.RLIM_INFINITY else soft
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    left = files - upstream_connections - _OTHER_FILES - 2 * ACCEPTED_AT_ONCE
    return max(left, files // 4)


class ConnectionLimit(ServerState):
    """What the connections of one port share."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._waiting: dict[ClientConnection, None] = {}

    def wait(self, connection: ClientConnection) -> None:
        """Note that a connection has no request; close the one that has waited longest."""
        self._waiting[connection] = None
        if len(self.connections) > self._most:
            longest = next(iter(self._waiting))
            self.leave(longest)
            longest.transport.abort()

    def leave(self, connection: ClientConnection) -> None:
        """Note that a connection has a request, or is closed."""
        self._waiting.pop(connection, None)


class ClientConnection(HttpToolsProtocol):
    """One connection, whose heads are bounded."""

    server_state: ConnectionLimit

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._unread = 0
        """Bytes since the last head, piece of a body or end of a request."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head."""
        super().connection_made(transport)
        self.server_state.wait(self)
        self._begin_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._end_timer()
        self.server_state.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what came, unless a head is too large."""
        self._unread += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unread > HEAD_BYTES:
            self._refuse(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        """Begin a head."""
        super().on_message_begin()
        self._begin_timer()

    def on_headers_complete(self) -> None:
        """Begin a request."""
        self._unread = 0
        self._end_timer()
        self.server_state.leave(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request's body."""
        self._unread = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begin to wait for the next head."""
        super().on_response_complete()
        if not self.transport.is_closing() and not self._is_answering():
            self.server_state.wait(self)

    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _begin_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._refuse, b"408 Request Timeout")

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: bytes) -> None:
        self._timer = None
        if self._is_answering():  # the head that comes meanwhile is the next request's
            self.transport.abort()
            return
        self.transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\n\r\n")
        self.transport.close()
