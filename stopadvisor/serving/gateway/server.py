"""The gateway as a process: its port, its signals, and how it ends.

The port has what clients ask for, and whether the gateway is well; SIGHUP reloads policies.
Knows uvicorn and the operating system; nothing of requests.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TextIO

import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, Router

from stopadvisor.engines.http.key import Key
from stopadvisor.engines.http.servers import Servers
from stopadvisor.ground.errors import ModelError
from stopadvisor.serving.gateway.app import Gateway
from stopadvisor.serving.gateway.connections import (
    ACCEPTED_AT_ONCE,
    ClientConnection,
    ConnectionLimit,
    most_connections,
)
from stopadvisor.serving.gateway.policies import PolicySet
from stopadvisor.serving.metrics import Log, Metrics
from stopadvisor.serving.serve_settings import GatewaySettings

__all__ = ["GatewayServer", "listen", "routes", "serve"]

_KEEP_ALIVE = 75
"""Seconds for which idle connections are kept: longer than balancers keep theirs."""
_BACKLOG = 2048
"""Connections that the system queues."""


def serve(settings: GatewaySettings, err: TextIO) -> int:
    """Serve until a signal ends it; return the exit code.

    Raises
    ------
    PolicyError
        A policy is refused, or is for another model than the upstreams'.
    ModelError
        An upstream cannot be used, its key is missing, or the address cannot be listened on.
    Unreachable
        No upstream answers for as long as is waited for.
    """
    named = settings.api_key_env
    key = None if named is None else Key.of_environment(named, required=True)
    policies = PolicySet.load(settings)
    urls = Servers(settings.upstreams).urls
    settings = replace(settings, upstreams=urls)
    # What it would log are errors of ours with their stacks, and access lines.
    logging.getLogger("uvicorn").addHandler(logging.NullHandler())
    logging.getLogger("uvicorn").propagate = False
    with listen(settings.host, settings.port) as listening:
        return asyncio.run(_run(settings, policies, key, Log(err), listening))


async def _run(
    settings: GatewaySettings,
    policies: PolicySet,
    key: Key | None,
    log: Log,
    listening: socket.socket,
) -> int:
    gateway = Gateway(settings, Metrics(), log, policies, key)
    if gateway.exit_code:  # an earlier alarm is still on
        log.write("alarm", code=gateway.exit_code)
        await gateway.aclose()
        return gateway.exit_code
    loop = asyncio.get_running_loop()
    # Its own would log stacks; of a full table of files, one for each connection that waits.
    loop.set_exception_handler(
        lambda _, what: log.write("fault", error=type(what.get("exception")).__name__)
    )
    server = GatewayServer.of(routes(gateway), settings)
    keeping = [asyncio.create_task(gateway.pool.keep(u)) for u in gateway.pool.all]
    reloads: set[asyncio.Task[None]] = set()  # the loop itself holds no task

    def stop() -> None:
        gateway.draining = True
        log.write("draining", grace=settings.grace)
        server.should_exit = True

    def begin_reload() -> None:
        again = loop.create_task(gateway.reload())
        reloads.add(again)
        again.add_done_callback(reloads.discard)

    gateway.leave = stop
    serving: asyncio.Task[None] | None = None
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        loop.add_signal_handler(signal.SIGHUP, begin_reload)
        serving = loop.create_task(server.serve(sockets=[listening]))
        first = loop.create_task(gateway.pool.first(settings.retry_timeout))
        await asyncio.wait({first, serving}, return_when=asyncio.FIRST_COMPLETED)
        if first.done():
            first.result()
            log.write("ready", port=listening.getsockname()[1], policies=gateway.names())
        first.cancel()
        await serving
        await gateway.auditors.drain(settings.grace)
        log.write("stopped")
        return gateway.exit_code
    finally:
        server.should_exit = True
        for task in keeping:
            task.cancel()
        begun = () if serving is None else (serving,)
        await asyncio.gather(*keeping, *begun, return_exceptions=True)
        await gateway.aclose()


class GatewayServer(uvicorn.Server):
    """Uvicorn's server; signals are for the process."""

    @classmethod
    def of(cls, routes: Router, settings: GatewaySettings) -> GatewayServer:
        """Make the server of some routes."""
        server = cls(
            uvicorn.Config(
                routes,
                http=ClientConnection,
                backlog=ACCEPTED_AT_ONCE,
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
        # A covered request thinks and probes at once.
        server.server_state = ConnectionLimit(most_connections(2 * settings.concurrency))
        return server

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; the system queues more connections than are accepted at once."""
        await super().startup(sockets)
        for at in sockets or ():
            at.listen(_BACKLOG)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them to the gateway."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; refuses an address that is taken or not this machine's."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.socket(family)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError as error:
        raise ModelError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return sock


# --- Routes ---------------------------------------------------------------------------------------


def routes(gateway: Gateway) -> Router:
    """Return what clients, balancers and Prometheus may ask."""

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
        ]
    )
