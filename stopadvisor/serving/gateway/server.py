"""The gateway as a process: routes, connection limits, signals and shutdown."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TextIO

import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, Router
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from stopadvisor.engines.http.servers import Servers
from stopadvisor.ground.errors import ModelError
from stopadvisor.serving.gateway.app import Gateway
from stopadvisor.serving.gateway.policies import PolicySet, upstream_key
from stopadvisor.serving.metrics import Log, Metrics
from stopadvisor.serving.serve_settings import GatewaySettings, reload_on_hangup

__all__ = ["listen", "run", "serve"]

_KEEP_ALIVE = 75
"""Seconds for which idle connections are kept: longer than load balancers keep theirs."""
_BACKLOG = 2048
"""Connections that the kernel queues."""
_ACCEPTED_AT_ONCE = 64
"""Connections accepted in one go, before the limit can close any."""
HEAD_SECONDS = 10.0
"""Time for a request's head, from its first byte or, on a new connection, from the connect."""
HEAD_BYTES = 64 * 2**10
"""Limit on a head, on chunk extensions and on trailers."""
_OTHER_FILES = 128
"""Open files other than connections to clients and upstreams."""
_MOST_FILES = 2**16


def serve(settings: GatewaySettings, err: TextIO) -> int:
    """Serve until a signal or an alarm ends it; return the exit code.

    Raises
    ------
    PolicyError
        A policy is refused, or does not match the upstreams' model.
    ModelError
        An upstream cannot be used, its key is missing, or the port cannot be opened.
    Unreachable
        No upstream answers within `settings.retry_timeout`.
    """
    upstream_key(settings)  # refuses an unset one
    policies = PolicySet.load(settings)
    settings = replace(settings, upstreams=Servers(settings.upstreams).urls)
    # Uvicorn would log access lines, and stack traces of our errors.
    logging.getLogger("uvicorn").addHandler(logging.NullHandler())
    logging.getLogger("uvicorn").propagate = False
    log = Log(err)
    audits, handler = logging.getLogger("stopadvisor.audits"), AuditMessages(log)
    audits.addHandler(handler)
    try:
        with listen(settings.host, settings.port) as listening:
            return asyncio.run(_run(settings, policies, log, listening))
    finally:
        audits.removeHandler(handler)


class AuditMessages(logging.Handler):
    """Writes alarms and failed audits into the gateway's log."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message."""
        self._log.write("audit", message=record.getMessage())


async def _run(
    settings: GatewaySettings, policies: PolicySet, log: Log, listening: socket.socket
) -> int:
    gateway = Gateway(settings, Metrics(), log, policies)
    if gateway.exit_code:  # an earlier alarm is still on
        log.write("alarm", code=gateway.exit_code)
        await gateway.aclose()
        return gateway.exit_code
    loop = asyncio.get_running_loop()
    # The default handler logs stack traces: one per waiting connection when files run out.
    loop.set_exception_handler(
        lambda _, context: log.write("fault", error=type(context.get("exception")).__name__)
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: gateway.leave())
    reload_on_hangup(gateway.reload)
    port = listening.getsockname()[1]
    log.write("waiting", upstreams=settings.upstreams, seconds=settings.retry_timeout)
    await run(gateway, listening, lambda: log.write("ready", port=port, policies=gateway.names()))
    log.write("stopped")
    return gateway.exit_code


async def run(gateway: Gateway, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until `gateway.leave` is called; call `ready` once requests can be answered.

    Raises as `serve`.
    """
    settings = gateway.settings
    server = GatewayServer.of(routes(gateway), settings)

    ends = 0.0

    def stop() -> None:
        nonlocal ends
        ends = ends or time.monotonic() + settings.grace  # a second signal gives no more time
        gateway.draining = True
        gateway.log.write("draining", grace=settings.grace)
        server.should_exit = True

    gateway.leave = stop
    tasks = [asyncio.create_task(gateway.pool.supervise(u)) for u in gateway.pool.all]
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    first = asyncio.create_task(gateway.pool.wait_ready(settings.retry_timeout))
    try:
        await asyncio.wait({first, serving}, return_when=asyncio.FIRST_COMPLETED)
        if first.done():
            first.result()
            ready()
        first.cancel()
        await serving
        await gateway.auditors.drain(max(0.0, ends - time.monotonic()))
    finally:
        server.should_exit = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, serving, return_exceptions=True)
        await gateway.aclose()


class GatewayServer(uvicorn.Server):
    """Uvicorn's server with a connection limit and without its signal handlers."""

    @classmethod
    def of(cls, routes: Router, settings: GatewaySettings) -> GatewayServer:
        """Configure the server."""
        server = cls(
            uvicorn.Config(
                routes,
                http=ClientConnection,
                backlog=_ACCEPTED_AT_ONCE,
                lifespan="off",
                ws="none",
                timeout_keep_alive=_KEEP_ALIVE,
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=max(1, round(settings.grace)),
            )
        )
        # A covered request may have two connections to its upstream: thinking and a probe.
        server.server_state = ConnectionLimit(most_connections(2 * settings.concurrency))
        return server

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen with a longer backlog than uvicorn's, which is how many are accepted at once."""
        await super().startup(sockets)
        for at in sockets or ():
            at.listen(_BACKLOG)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: `_run` installs the signal handlers."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; refuse an address in use or not on this machine."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.socket(family)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        raise ModelError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return sock


# --- Connections ----------------------------------------------------------------------------------


def most_connections(upstream_connections: int) -> int:
    """Raise the limit on open files as far as allowed; return how many clients may connect."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= files:
        files = _MOST_FILES if soft == resource.RLIM_INFINITY else soft
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    left = files - upstream_connections - _OTHER_FILES - 2 * _ACCEPTED_AT_ONCE
    return max(left, files // 4)


class ConnectionLimit(ServerState):
    """Limits the connections of one port.

    A connection waits until its request's head is complete, and again while it is kept alive.
    Beyond the limit, the longest-waiting one is closed: slow clients evict each other.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._waiting: dict[ClientConnection, None] = {}

    def wait(self, connection: ClientConnection) -> None:
        """Add a waiting connection; beyond the limit, close the longest-waiting one."""
        self._waiting[connection] = None
        if len(self.connections) > self._most:
            longest = next(iter(self._waiting))
            self.leave(longest)
            longest.transport.abort()

    def leave(self, connection: ClientConnection) -> None:
        """Remove a connection that got a request or was closed."""
        self._waiting.pop(connection, None)


class ClientConnection(HttpToolsProtocol):
    """One connection; request heads are limited in size and time."""

    server_state: ConnectionLimit

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unread = 0
        """Bytes received since the last head, body piece or end of a request."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for a head."""
        super().connection_made(transport)
        self.server_state.wait(self)
        self._begin_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._end_timer()
        self.server_state.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; refuse a head that is too large."""
        self._unread += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unread > HEAD_BYTES:
            self._refuse(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        """Start the timer of a head."""
        super().on_message_begin()
        self._begin_timer()

    def on_headers_complete(self) -> None:
        """Start a request."""
        self._unread = 0
        self._end_timer()
        self.server_state.leave(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Receive a piece of a body."""
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request's body."""
        self._unread = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Start waiting for the next head."""
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
        if self._is_answering():  # it was pipelined; an error now would corrupt the reply
            self.transport.abort()
            return
        self.transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\n\r\n")
        self.transport.close()


# --- Routes ---------------------------------------------------------------------------------------


def routes(gateway: Gateway) -> Router:
    """Return the routes for clients, load balancers and Prometheus."""

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        if gateway.is_ready:
            return PlainTextResponse("ready\n")
        why = "draining" if gateway.draining else "no upstream is in use"
        return PlainTextResponse(f"{why}\n", status_code=503)

    async def metrics(_: Request) -> Response:
        gateway.metrics.tasks.set(len(asyncio.all_tasks()))
        text, content_type = gateway.metrics.text()
        return Response(text, headers={"Content-Type": content_type})

    return Router(
        [
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
            Mount("/v1", app=gateway),
        ],
        redirect_slashes=False,  # a redirect would name the host that the client's header names
    )
