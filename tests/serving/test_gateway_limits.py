"""The gateway under hostile clients and servers: what one of them does costs the others nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.engines.openai.model import ServedModel
from stopadvisor.serving.gateway import reading
from stopadvisor.serving.gateway.forward import Forwarder
from tests.serving.gateways import (
    OddServer,
    RunningGateway,
    chat_body,
    odd_server,
    running,
    save_policy_of,
    until,
)

LONG = 70_000
"""Characters of a text that is not read within the event loop."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policies") / "stops.json"
    with odd_server() as server:
        save_policy_of(server, path)
    return path


@pytest.fixture
def server() -> Iterator[OddServer]:
    with odd_server() as server:
        yield server


@pytest.fixture
def gateway(server: OddServer, policy: Path) -> Iterator[RunningGateway]:
    with running(policy, server) as gateway:
        yield gateway


def says(to: BaseHTTPRequestHandler, answer: bytes) -> None:
    """Write an answer by hand, and hang up."""
    to.wfile.write(answer)
    to.close_connection = True


def connected(gateway: RunningGateway, sent: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", gateway.port), timeout=20)
    client.sendall(sent)
    return client


def to_the_end(client: socket.socket) -> bytes:
    """Read until the gateway closes the connection."""
    with client:
        return b"".join(iter(lambda: client.recv(2**16), b""))


HEAD = b"POST /v1/odd HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


# --- Clients --------------------------------------------------------------------------------------


def test_what_no_policy_can_cover_is_not_parsed(server: OddServer, gateway: RunningGateway) -> None:
    """A list of empty lists would take the event loop for seconds; nothing of it is looked at."""
    server.odd["/v1/odd"] = lambda to, body: says(to, b"HTTP/1.1 200 OK\r\n\r\n%d" % len(body))
    server.odd["/v1/chat/completions"] = server.odd["/v1/odd"]
    body = b"[" * 100_000
    got = gateway.ask(body, "/v1/odd")
    assert (got.way, got.body) == ("passthrough; reason=path", b"100000")
    got = gateway.ask(body)  # more than a prompt for a context of 1,024 tokens can have
    assert (got.way, got.body) == ("passthrough; reason=room", b"100000")
    assert gateway.ask(b"[" * 70_000).way == "passthrough; reason=body"


def test_a_long_prompt_keeps_nobody_waiting(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is rendered and tokenized beside the event loop."""
    begun, go, own = threading.Event(), threading.Event(), ServedModel.open

    def slowly(model: ServedModel, messages: Any) -> Any:
        if len(messages[0]["content"]) >= LONG:
            begun.set()
            assert go.wait(20)
        return own(model, messages)

    monkeypatch.setattr(ServedModel, "open", slowly)
    ways: list[str] = []
    asking = threading.Thread(target=lambda: ways.append(gateway.ask(chat_body("7" * LONG)).way))
    asking.start()
    try:
        assert begun.wait(20)
        assert gateway.ask(chat_body()).way == "policy; reason=covered"
    finally:
        go.set()
        asking.join()
    assert ways == ["passthrough; reason=room"]


def test_unfinished_bodies_take_so_much_memory_and_no_more(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_AT_ONCE", 1000)
    first = connected(gateway, HEAD % 2000 + b"x" * 900)
    until(lambda: gateway.gateway._intake._held == 900)
    full = gateway.ask(b"x" * 200, "/v1/odd")
    assert (full.status, full.json["error"]["type"]) == (429, "rate_limit_exceeded")
    assert int(full.headers["retry-after"]) > 0
    assert gateway.ask(b"x" * 50, "/v1/models").status != 429
    first.close()
    until(lambda: gateway.gateway._intake._held == 0)
    assert gateway.ask(b"x" * 200, "/v1/models").status != 429


def test_a_body_that_does_not_go_on_is_not_waited_for(server: OddServer, policy: Path) -> None:
    with running(policy, server, timeouts={"between": 0.3}) as gateway:
        got = to_the_end(connected(gateway, HEAD % 5 + b"{"))
        assert got.startswith(b"HTTP/1.1 408 ")
        assert gateway.record()["status"] == 408
        assert gateway.gateway._intake._held == 0


# --- Servers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("large", [False, True], ids=["redirection", "large"])
def test_a_list_of_models_is_short_and_where_it_was(
    server: OddServer, gateway: RunningGateway, large: bool
) -> None:
    listed = gateway.get("/v1/models").body
    found = b"HTTP/1.1 302 Found\r\nLocation: /v1/elsewhere\r\nContent-Length: 0\r\n\r\n"
    if large:
        found = b"HTTP/1.1 200 OK\r\n\r\n" + listed + b" " * 5 * 2**20
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(listed) + listed
    server.odd["/v1/elsewhere"] = lambda to, body: says(to, whole)
    server.odd["/v1/models"] = lambda to, body: says(to, found)
    until(lambda: "upstream-down" in {line["event"] for line in gateway.lines}, 20)
    del server.odd["/v1/models"]
    until(lambda: gateway.gateway.is_ready, 20)


def test_a_server_that_does_not_list_its_models_in_time_is_checked(
    server: OddServer, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(forwarder: Forwarder, url: str) -> Any:
        raise TimeoutError

    monkeypatch.setattr(Forwarder, "get", late)
    missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    server.odd["/v1/models"] = lambda to, body: says(to, missing)
    until(lambda: not gateway.gateway.is_ready, 20)


@pytest.mark.parametrize("status", [b"999", b"000", b"101", b"600"])
def test_a_status_that_ends_no_request_is_not_passed_on(
    server: OddServer, gateway: RunningGateway, status: bytes
) -> None:
    answer = b"HTTP/1.1 " + status + b" Odd\r\nContent-Length: 2\r\n\r\n{}"
    server.odd["/v1/odd"] = lambda to, body: says(to, answer)
    got = gateway.ask(b"{}", "/v1/odd")
    assert (got.status, got.json["error"]["type"]) == (502, "upstream_error")
    assert gateway.record()["status"] == 502


def test_a_server_cannot_say_how_a_request_was_served(
    server: OddServer, gateway: RunningGateway
) -> None:
    forged = (
        b"HTTP/1.1 200 OK\r\nX-StopAdvisor: policy; digest=f0f0f0f0\r\nContent-Length: 2\r\n\r\n{}"
    )
    server.odd["/v1/odd"] = lambda to, body: says(to, forged)
    asked = b"POST /v1/odd HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    got = to_the_end(connected(gateway, asked)).lower()
    assert got.count(b"x-stopadvisor:") == 1
    assert b"x-stopadvisor: passthrough; reason=path" in got


def test_requests_that_make_a_server_fail_do_not_take_it_from_others(
    server: OddServer, gateway: RunningGateway
) -> None:
    server.odd["/v1/odd"] = lambda to, body: says(to, b"")
    assert {gateway.ask(b"{}", "/v1/odd").status for _ in range(4)} == {502}
    assert gateway.ask(chat_body()).way == "policy; reason=covered"
    until(lambda: sum(line["event"] == "upstream-up" for line in gateway.lines) >= 2, 20)
    assert "upstream-down" not in {line["event"] for line in gateway.lines}
