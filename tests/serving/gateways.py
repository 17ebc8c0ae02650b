"""Gateways in this process, in front of scripted servers, over real sockets."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry

from stopadvisor.policy.frozen import Policy, load_policy, save_policy
from stopadvisor.serving.gateway.app import Gateway
from stopadvisor.serving.gateway.policies import PolicySet
from stopadvisor.serving.gateway.server import listen, run
from stopadvisor.serving.metrics import Log, Metrics
from stopadvisor.serving.serve_settings import GatewaySettings, Timeouts
from tests.engines.fake_server import FakeServer
from tests.engines.test_openai_engine import engine_at
from tests.engines.test_openai_online import policy_of
from tests.policy_content import certificate_content, full_budget_content, policy_from

QUESTION = "3+4"
PATIENCE = 60.0
"""Seconds after which a test stops waiting."""
NEVER: dict[str, Any] = {"decision_threshold": 9.0, "threshold": 9.0}
FULL_BUDGET = {
    name: full_budget_content()[name]
    for name in (
        *("kind", "family", "features", "mean", "scale", "coef", "intercept", "threshold"),
        *("decision_threshold", "trigger", "budgets"),
        *("certificate", "expected", "calibration_features"),
    )
}
"""Changes that make a policy one of full thinking."""
WATCHED = certificate_content(differs_upper=0.07)
"""A certificate with a limit of differing replies, as audits need it."""

Odd = Callable[[BaseHTTPRequestHandler, bytes], None]
"""Answers a request by hand."""


class Seen(NamedTuple):
    """A request that was answered by hand."""

    path: str
    body: bytes
    headers: dict[str, str]
    """Names in lower case."""


def http_reply(body: bytes = b"{}", *headers: str, status: str = "200 OK") -> bytes:
    """A reply of a server that then closes the connection."""
    ends = ("Connection: close", f"Content-Length: {len(body)}", "", "")
    lines = (f"HTTP/1.1 {status}", *headers, *ends)
    return "\r\n".join(lines).encode() + body


def says(answer: bytes, seen: list[Seen] | None = None) -> Odd:
    """Writes these bytes, and closes the connection."""

    def odd(to: BaseHTTPRequestHandler, body: bytes) -> None:
        if seen is not None:
            seen.append(Seen(to.path, body, _lower(to.headers.items())))
        to.wfile.write(answer)
        to.close_connection = True

    return odd


def _lower(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}


@dataclass
class OddServer(FakeServer):
    """A server that misbehaves on some paths, or in the middle of some answers."""

    odd: dict[str, Odd] = field(default_factory=dict)
    """By path."""
    wild: Odd | None = None
    """Answers every request."""
    holds: str = ""
    """Kind of request to leave unfinished: ``thinking`` and ``chat`` after their third token, a
    ``probe``, and each with ``silent-`` before their first byte."""
    held: int = 0
    """Requests that were held."""
    left: int = 0
    """Held requests whose client has disconnected."""
    keeps: bool = True
    """Answers more than one POST of a connection; if not, it resets the connection."""
    resets: int = 0
    connections: list[socket.socket] = field(default_factory=list)

    @property
    def named(self) -> list[dict[str, str]]:
        """Headers of the requests for tokens, their names in lower case."""
        return [_lower(given.items()) for given in self.headers]

    def kill(self) -> None:
        """Close all connections at once, as if the process were killed."""
        self.stop()
        for connection in self.connections:
            with suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_RDWR)
        self.connections.clear()

    def get(self, to: BaseHTTPRequestHandler) -> None:
        self.connections.append(to.connection)
        odd = self.wild or self.odd.get(to.path.partition("?")[0])
        if odd is None:
            super().get(to)
        else:
            odd(to, b"")

    def post(self, to: BaseHTTPRequestHandler) -> None:
        if not self.keeps and to.connection in self.connections:
            self.resets += 1
            linger = struct.pack("ii", 1, 0)  # closing sends a reset
            to.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            os.close(to.connection.detach())
            to.close_connection = True
            return
        self.connections.append(to.connection)
        odd = self.wild or self.odd.get(to.path.partition("?")[0])
        if odd is None:
            super().post(to)
        else:
            odd(to, to.rfile.read(int(to.headers["Content-Length"])))

    def _complete(self, to: Any, body: dict[str, Any], fault: str | None) -> None:
        kind = "chat" if "messages" in body else "probe" if "stop" in body else "thinking"
        is_short = self.holds == "thinking" and body["max_tokens"] < 4  # it has no third token
        if is_short or self.holds not in (kind, f"silent-{kind}"):
            super()._complete(to, body, fault)
        elif self.holds == kind and kind != "probe":
            super()._complete(to, body, "cut-short")
            self.hold(to)
        else:
            self.hold(to)

    def hold(self, to: BaseHTTPRequestHandler) -> None:
        """Wait for the client to disconnect."""
        self.held += 1
        to.connection.settimeout(PATIENCE)
        while to.connection.recv(1):
            pass
        self.left += 1
        to.close_connection = True


def save_policy_of(
    server: FakeServer, path: Path, *, name: str = "tiny-reasoner", **changes: Any
) -> Policy:
    """Write a policy for a server's model: it stops at 4 thinking tokens."""
    changes = {"prompt_template": None, "certificate": WATCHED, **changes}
    with engine_at(server, name=name) as engine:
        policy = policy_of(engine, **changes)
    save_policy(policy, path)
    return policy


def save_changed(policy: Path, path: Path, **changes: Any) -> None:
    """Write a policy like another one."""
    save_policy(policy_from(load_policy(policy).content | changes), path, format="json")


def chat_body(text: str = QUESTION, **fields: Any) -> dict[str, Any]:
    """A chat request that the policy covers."""
    messages = [{"role": "user", "content": text}]
    return {"model": "tiny-reasoner", "messages": messages, **fields}


@dataclass
class Answer:
    """A reply."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def way(self) -> str:
        """Route and reason."""
        return self.headers["x-stopadvisor"].rpartition(";")[0]

    @property
    def events(self) -> list[dict[str, Any]]:
        """A stream's chunks."""
        lines = [line.removeprefix(b"data: ") for line in self.body.split(b"\n\n")]
        assert lines[-2:] == [b"[DONE]", b""]
        return [json.loads(line) for line in lines[:-2] if not line.startswith(b":")]

    @property
    def usage(self) -> dict[str, Any]:
        """Counts of tokens, at the end of a stream."""
        return dict((self.json if self.body[:1] == b"{" else self.events[-1])["usage"])

    def text(self, name: str) -> str:
        """A field of a whole reply's message, or of all deltas of a stream."""
        if self.body[:1] == b"{":
            return str(self.json["choices"][0]["message"][name])
        choices = [choice for event in self.events for choice in event.get("choices", ())]
        return "".join((choice["delta"] or {}).get(name) or "" for choice in choices)


@dataclass
class RunningGateway:
    """A gateway in a thread of its own."""

    gateway: Gateway
    port: int
    loop: asyncio.AbstractEventLoop
    logged: io.StringIO = field(repr=False)

    def ask(
        self,
        body: Any = None,
        path: str = "/v1/chat/completions",
        *,
        method: str = "POST",
        port: int | None = None,
        timeout: float = 2 * PATIENCE,
        **headers: str,
    ) -> Answer:
        """Send one request."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=timeout)
        try:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, data, {"Content-Type": "application/json", **named})
            found = connection.getresponse()
            return Answer(found.status, _lower(found.getheaders()), found.read())
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        """Ask for a page."""
        return self.ask(path=path, method="GET")

    def connect(self, sent: bytes) -> socket.socket:
        """Send these bytes and read nothing."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        client.sendall(sent)
        return client

    def send(self, body: dict[str, Any]) -> socket.socket:
        """Send a chat request and read nothing."""
        data = json.dumps(body).encode()
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n"
        )
        return self.connect(head % len(data) + data)

    def reload(self) -> None:
        """Read the policies again, as on SIGHUP."""
        asyncio.run_coroutine_threadsafe(self.gateway.reload(), self.loop).result(20)

    @property
    def records(self) -> list[dict[str, Any]]:
        """Requests that were logged."""
        return [line for line in self.lines if line["event"] == "request"]

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All that was logged."""
        return [json.loads(line) for line in self.logged.getvalue().splitlines()]

    def record(self, number: int = 1) -> dict[str, Any]:
        """The last request logged, once there are at least `number`."""
        until(lambda: len(self.records) >= number)
        return self.records[-1]

    def tasks(self) -> int:
        """Tasks that its loop holds."""

        async def count() -> int:
            return len(asyncio.all_tasks()) - 1

        return asyncio.run_coroutine_threadsafe(count(), self.loop).result(5)


def received(client: socket.socket) -> bytes:
    """Read all that comes, to the end of the connection or of a reply in chunks."""
    got = b""
    with client:
        while not got.endswith(b"\r\n0\r\n\r\n") and (piece := client.recv(2**16)):
            got += piece
    return got


def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds, however busy the machine is."""
    gives_up = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < gives_up, "it did not come"
        time.sleep(0.002)


@contextmanager
def odd_server(**options: Any) -> Iterator[OddServer]:
    """Run a scripted server that returns thinking as ``reasoning_content``."""
    server = OddServer(chat="reasoning_content", **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def running(policies: Path, *servers: FakeServer | str, **changes: Any) -> Iterator[RunningGateway]:
    """Run a gateway until the block is left."""
    urls = tuple(server if isinstance(server, str) else server.url for server in servers)
    # No reply depends on how busy the machine is.
    timeouts = Timeouts(first=PATIENCE, between=PATIENCE, total=PATIENCE, probe=PATIENCE)
    timeouts = replace(timeouts, **changes.pop("timeouts", {}))
    settings = GatewaySettings(policies, upstreams=urls, timeouts=timeouts, check_every=0.1)
    settings = replace(settings, grace=2.0, retry_timeout=PATIENCE)
    settings = replace(settings, **changes)
    logged = io.StringIO()
    begun: list[RunningGateway] = []
    failed: list[BaseException] = []

    async def work() -> None:
        metrics, loop = Metrics(CollectorRegistry()), asyncio.get_running_loop()
        gateway = Gateway(settings, metrics, Log(logged), PolicySet.load(settings))

        def is_ready() -> None:
            begun.append(RunningGateway(gateway, at.getsockname()[1], loop, logged))
            ready.set()

        with listen("127.0.0.1", 0) as at:
            await run(gateway, at, is_ready)

    def thread_work() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            failed.append(error)
        finally:
            ready.set()

    ready = threading.Event()
    thread = threading.Thread(target=thread_work, daemon=True)
    thread.start()
    ready.wait(2 * PATIENCE)
    if failed:
        raise failed[0]
    try:
        yield begun[0]
    finally:
        with suppress(RuntimeError):  # it has left, and closed its loop
            begun[0].loop.call_soon_threadsafe(begun[0].gateway.leave)
        thread.join(20)
        assert not thread.is_alive(), "the gateway does not end"
        if failed:
            raise failed[0]
