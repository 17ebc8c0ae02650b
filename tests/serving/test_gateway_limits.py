"""The gateway under hostile clients and servers: the others do not notice."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from stopadvisor.engines.chat import Chat
from stopadvisor.serving.gateway import intake
from stopadvisor.serving.gateway import server as server_module
from stopadvisor.serving.gateway.forward import Forwarder, proxy_of
from stopadvisor.serving.gateway.intake import Target
from tests.serving.gateways import (
    Odd,
    OddServer,
    RunningGateway,
    chat_body,
    odd_server,
    running,
    save_policy_of,
    until,
)

LONG = 70_000
"""Characters of a text that is tokenized in a thread."""


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
    """Write raw bytes, and close the connection."""
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
    """Parsing nested lists would block the event loop for seconds."""
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
    """It is rendered and tokenized in a thread."""
    begun, go, own = threading.Event(), threading.Event(), Chat.prompt_ids

    def slowly(chat: Chat, messages: Any) -> Any:
        if len(messages[0]["content"]) >= LONG:
            begun.set()
            assert go.wait(20)
        return own(chat, messages)

    monkeypatch.setattr(Chat, "prompt_ids", slowly)
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


def test_bodies_count_until_their_requests_are_answered(
    server: OddServer, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While they are received, and while their requests wait for an upstream."""
    monkeypatch.setattr(intake, "_HELD_BYTES", 1000)
    go = threading.Event()

    def late(to: BaseHTTPRequestHandler, body: bytes) -> None:
        assert go.wait(20)
        says(to, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    server.odd["/v1/odd"] = late
    half = connected(gateway, HEAD % 2000 + b"x" * 400)
    whole = connected(gateway, HEAD % 500 + b"x" * 500)
    held = gateway.gateway._intake
    until(lambda: held._held == 900)
    try:
        full = gateway.ask(b"x" * 200, "/v1/odd")
        assert (full.status, full.json["error"]["type"]) == (429, "rate_limit_exceeded")
        assert int(full.headers["retry-after"]) > 0
        assert gateway.ask(b"x" * 50, "/v1/models").status != 429
        half.close()
        until(lambda: held._held == 500)
    finally:
        go.set()
    assert whole.recv(2**16).startswith(b"HTTP/1.1 200 ")
    whole.close()
    until(lambda: held._held == 0)


def test_a_body_that_does_not_go_on_is_not_waited_for(server: OddServer, policy: Path) -> None:
    with running(policy, server, timeouts={"between": 0.3}) as gateway:
        got = to_the_end(connected(gateway, HEAD % 5 + b"{"))
        assert got.startswith(b"HTTP/1.1 408 ")
        assert gateway.record()["status"] == 408
        assert gateway.gateway._intake._held == 0


def test_half_requests_keep_nobody_out(
    server: OddServer, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the limit, the connections that have waited longest are closed."""
    monkeypatch.setattr(server_module, "most_connections", lambda upstream: 20)
    with running(policy, server) as gateway, ExitStack() as sockets:
        half = [
            sockets.enter_context(connected(gateway, b"GET /v1/models HTTP/1.1\r\nX: "))
            for _ in range(60)
        ]
        for number in range(3):
            assert gateway.ask(chat_body()).way == "policy; reason=covered", number
        with suppress(ConnectionResetError):  # instead of an end
            assert half[0].recv(1) == b""
    assert {line["event"] for line in gateway.lines} == {"upstream-up", "request", "draining"}


@pytest.mark.parametrize("before", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_a_head_that_does_not_end_is_not_waited_for(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.2)
    got = to_the_end(connected(gateway, before + b"GET /v1/models HTTP/1.1\r\nX: y"))
    assert got.startswith(b"HTTP/1.1 200 OK") == bool(before)
    assert got.endswith(b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n\r\n")


def test_a_head_has_a_largest_size(gateway: RunningGateway) -> None:
    client = connected(gateway, b"GET /v1/models HTTP/1.1\r\nX: ")
    client.sendall(b"y" * (server_module.HEAD_BYTES + 1))
    assert to_the_end(client).startswith(b"HTTP/1.1 431 ")


ELSEWHERE = (
    "/v1%2f@127.0.0.1:{port}/loot",
    "/v1%40127.0.0.1:{port}/loot",
    "/v1/..?x",
    "/v1/../loot",
    "/v1/%2e%2e/loot",
    "/v1/x/%2e%2e%2f..%2floot",
    "/v1/%252e%252e/loot",
    "/v1/..;/loot",
    "/v1/.%3b/..%3bx/loot",
    "/v1/..%5cloot",
    "/v1/x%00",
)


def answers(asked: list[str], body: bytes = b"{}") -> Odd:
    """Answer any request, and note its target."""

    def answer(to: BaseHTTPRequestHandler, _: bytes) -> None:
        asked.append(to.path)
        says(to, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    return answer


@pytest.mark.parametrize("base", ["", "/v1"], ids=["host-alone", "below-v1"])
def test_no_path_leads_out_of_the_upstream(server: OddServer, policy: Path, base: str) -> None:
    """Neither to another server nor out of the base URL."""
    asked: list[str] = []
    with odd_server() as other, running(policy, server, check_every=60.0) as gateway:
        (upstream,) = gateway.gateway.pool.all
        upstream.url = upstream.url.removesuffix("/v1") + base
        server.wild = other.wild = answers(asked)
        for path in ELSEWHERE:
            line = f"GET {path.format(port=other.port)} HTTP/1.1\r\n".encode()
            got = to_the_end(connected(gateway, line + b"Host: x\r\nConnection: close\r\n\r\n"))
            assert got.startswith(b"HTTP/1.1 404 "), path
    assert asked == []


@pytest.mark.parametrize("base", ["http://host:8000", "https://host/v1", "http://[::1]:1/a/v1"])
def test_a_target_stays_at_its_upstream(base: str) -> None:
    for path in ("//evil/x", "/@evil/x", "/x:1@evil", "/%2f@evil"):
        url = Target(path, "y=//evil").at(base)
        assert str(url) == f"{base}{path}?y=//evil"
        assert url.origin() == URL(base).origin()


def test_what_stays_below_goes_through(server: OddServer, policy: Path) -> None:
    asked: list[str] = []
    paths = ["/v1/models/org%2Fname", "/v1/a..b/...?up=../..", "/v1/files/a@b:1?q=%252e"]
    with running(policy, server, check_every=60.0) as gateway:
        server.wild = answers(asked)
        for path in paths:
            assert gateway.get(path).status == 200
    assert asked == paths


def test_methods_that_show_a_key_or_open_a_tunnel_are_refused(gateway: RunningGateway) -> None:
    for method in ("TRACE", "PROPFIND"):
        got = gateway.ask(path="/v1/models", method=method)
        assert (got.status, got.way) == (405, "passthrough; reason=path")


def test_headers_that_a_connection_names_stay_on_it(
    server: OddServer, gateway: RunningGateway
) -> None:
    seen: list[dict[str, str]] = []

    def answer(to: BaseHTTPRequestHandler, body: bytes) -> None:
        seen.append({name.lower(): value for name, value in to.headers.items()})
        says(
            to,
            b"HTTP/1.1 200 OK\r\nConnection: X-Inner\r\nX-Inner: 1\r\nX-Outer: 2\r\n"
            b"Content-Length: 2\r\n\r\n{}",
        )

    server.odd["/v1/odd"] = answer
    got = gateway.ask(b"{}", "/v1/odd", Connection="X-Hop, close", X_Hop="1", X_Kept="2")
    assert ("x-hop" in seen[0], seen[0]["x-kept"]) == (False, "2")
    assert ("x-inner" in got.headers, got.headers["x-outer"]) == (False, "2")


def test_the_operators_netrc_is_not_for_clients(
    server: OddServer, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login operator password for-the-operator\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with running(policy, server) as gateway:
        server.headers.clear()
        assert gateway.ask(chat_body(n=2)).way == "passthrough; reason=n"
        assert gateway.ask(chat_body(n=2), Authorization="Bearer of-a-client").status == 200
        assert gateway.ask(chat_body()).way == "policy; reason=covered"
    sent = [{name.lower(): value for name, value in given.items()} for given in server.headers]
    assert {given.get("authorization") for given in sent} == {None, "Bearer of-a-client"}


def test_a_proxy_of_the_environment_is_used(
    server: OddServer, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None]] = []
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    with running(policy, server, check_every=60.0) as gateway, odd_server() as proxy:
        pool = gateway.gateway.pool
        monkeypatch.setenv("http_proxy", f"http://user:pass%21@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "elsewhere")
        gateway.gateway._forwarder._proxies = {u: proxy_of(u.url) for u in pool.all}

        def note(to: BaseHTTPRequestHandler, _: bytes) -> None:
            asked.append((to.path, to.headers["Proxy-Authorization"]))
            says(to, answer)

        proxy.wild = note
        assert gateway.get("/v1/odd").status == 200
    assert asked == [(f"{server.url}/odd", "Basic dXNlcjpwYXNzIQ==")]


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
    until(lambda: "upstream-down" in {line["event"] for line in gateway.lines})
    del server.odd["/v1/models"]
    until(lambda: gateway.gateway.is_ready)


def test_a_server_that_does_not_list_its_models_in_time_is_checked(
    server: OddServer, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(forwarder: Forwarder, upstream: Any, path: str) -> Any:
        raise TimeoutError

    monkeypatch.setattr(Forwarder, "get", late)
    missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    server.odd["/v1/models"] = lambda to, body: says(to, missing)
    until(lambda: not gateway.gateway.is_ready)


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


KEY = 'sk-"of/the-gateway'


def test_a_server_that_repeats_the_key_does_not_hand_it_out(
    server: OddServer, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in a header, not across pieces of a body, and not in JSON's notation."""
    escaped = json.dumps(KEY)[1:-1]
    texts = [f"bad key {KEY}", escaped, escaped.replace("/", "\\/"), KEY[:-1]]
    body = "|".join(texts).encode()

    def answer(to: BaseHTTPRequestHandler, _: bytes) -> None:
        assert to.headers["Accept-Encoding"] == "identity"
        head = f"HTTP/1.1 401 Unauthorized\r\nX-Key: {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
        to.wfile.write(head.encode())
        for at in range(0, len(body), 7):
            to.wfile.write(body[at : at + 7])
            to.wfile.flush()
        to.close_connection = True

    server.odd["/v1/odd"] = answer
    monkeypatch.setenv("UPSTREAM_KEY", KEY)
    with running(policy, server, api_key_env="UPSTREAM_KEY") as gateway:
        got = gateway.ask(b"{}", "/v1/odd", Accept_Encoding="gzip")
        packed = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"
        server.odd["/v1/odd"] = lambda to, body: says(to, packed)
        assert gateway.ask(b"{}", "/v1/odd").status == 502
    hidden = [f"bad key {'*' * len(KEY)}", *("*" * len(text) for text in texts[1:3]), KEY[:-1]]
    assert got.body.decode().split("|") == hidden
    assert got.headers["x-key"] == "*" * len(KEY)


def test_requests_that_make_a_server_fail_do_not_take_it_from_others(
    server: OddServer, gateway: RunningGateway
) -> None:
    server.odd["/v1/odd"] = lambda to, body: says(to, b"")
    assert {gateway.ask(b"{}", "/v1/odd").status for _ in range(4)} == {502}
    assert gateway.ask(chat_body()).way == "policy; reason=covered"
    until(lambda: sum(line["event"] == "upstream-up" for line in gateway.lines) >= 2)
    assert "upstream-down" not in {line["event"] for line in gateway.lines}
