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
from stopadvisor.serving.gateway.intake import Refusal, Target
from tests.serving.gateways import (
    OddServer,
    RunningGateway,
    Seen,
    chat_body,
    http_reply,
    odd_server,
    received,
    running,
    says,
    until,
)

LONG = 70_000
"""Characters of a text that is tokenized in a thread."""


@pytest.fixture(scope="module")
def shared(policies: Path) -> Iterator[tuple[OddServer, RunningGateway]]:
    with odd_server() as server, running(policies / "stops.json", server) as gateway:
        yield server, gateway


@pytest.fixture
def server(shared: tuple[OddServer, RunningGateway]) -> Iterator[OddServer]:
    """The server of all tests, whose odd answers end with a test."""
    yield shared[0]
    shared[0].odd.clear()


@pytest.fixture
def gateway(shared: tuple[OddServer, RunningGateway], server: OddServer) -> RunningGateway:
    """The gateway of all tests, ready again."""
    until(lambda: shared[1].gateway.is_ready)
    return shared[1]


@pytest.fixture
def policy(policies: Path) -> Path:
    return policies / "stops.json"


HEAD = b"POST /v1/odd HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


# --- Clients --------------------------------------------------------------------------------------


def test_what_no_policy_can_cover_is_not_parsed(server: OddServer, gateway: RunningGateway) -> None:
    """Parsing nested lists would block the event loop for seconds."""
    seen: list[Seen] = []
    server.odd = dict.fromkeys(("/v1/odd", "/v1/chat/completions"), says(http_reply(), seen))
    body = b"[" * 100_000
    assert gateway.ask(body, "/v1/odd").way == "passthrough; reason=path"
    # More than a prompt for a context of 1,024 tokens can have.
    assert gateway.ask(body).way == "passthrough; reason=room"
    assert [asked.body for asked in seen] == [body, body]
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
        says(http_reply())(to, body)

    server.odd["/v1/odd"] = late
    half = gateway.connect(HEAD % 2000 + b"x" * 400)
    whole = gateway.connect(HEAD % 500 + b"x" * 500)
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


def test_a_body_has_a_largest_size(
    server: OddServer, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "_MOST_BYTES", 1000)
    server.odd["/v1/odd"] = says(http_reply())
    assert [gateway.ask(b"x" * size, "/v1/odd").status for size in (1000, 1001)] == [200, 413]
    until(lambda: gateway.gateway._intake._held == 0)


def test_a_body_that_does_not_go_on_is_not_waited_for(server: OddServer, policy: Path) -> None:
    with running(policy, server, timeouts={"between": 0.3}) as gateway:
        got = received(gateway.connect(HEAD % 5 + b"{"))
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
            sockets.enter_context(gateway.connect(b"GET /v1/models HTTP/1.1\r\nX: "))
            for _ in range(60)
        ]
        for number in range(3):
            assert gateway.ask(chat_body()).way == "policy; reason=covered", number
        for longest in (half[0], half[30]):
            with suppress(ConnectionResetError):  # instead of an end
                assert longest.recv(1) == b""
    assert {line["event"] for line in gateway.lines} == {"upstream-up", "request", "draining"}


def test_idle_connections_make_room_and_those_with_a_request_do_not(
    server: OddServer, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one whose request came before the reply to the one before it."""
    go, begun = threading.Event(), threading.Event()

    def late(to: BaseHTTPRequestHandler, body: bytes) -> None:
        begun.set()
        assert go.wait(20)
        says(http_reply(b"late"))(to, body)

    server.odd["/v1/odd"] = late
    monkeypatch.setattr(server_module, "most_connections", lambda upstream: 4)
    short = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with running(policy, server) as gateway, ExitStack() as sockets:
        answered = sockets.enter_context(gateway.connect(short + HEAD % 2 + b"{}"))
        assert begun.wait(20)
        read_until(answered, b"ok\n")
        idle = []
        for _ in range(3):
            idle.append(sockets.enter_context(gateway.connect(short)))
            read_until(idle[-1], b"ok\n")
        assert gateway.get("/healthz").status == 200
        with suppress(ConnectionResetError):  # instead of an end
            assert idle[0].recv(1) == b""
        for client in idle[1:]:
            client.sendall(short)
            read_until(client, b"ok\n")
        go.set()
        read_until(answered, b"late")


def read_until(client: socket.socket, end: bytes) -> None:
    got = b""
    while not got.endswith(end):
        piece = client.recv(2**16)
        assert piece, "the connection was closed"
        got += piece


@pytest.mark.parametrize("before", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_a_head_that_does_not_end_is_not_waited_for(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.2)
    got = received(gateway.connect(before + b"GET /v1/models HTTP/1.1\r\nX: y"))
    assert got.startswith(b"HTTP/1.1 200 OK") == bool(before)
    assert got.endswith(b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n\r\n")


def test_a_head_has_a_largest_size(gateway: RunningGateway) -> None:
    for size, status in ((64 * 1024 - 100, b"200"), (64 * 1024, b"431")):
        client = gateway.connect(b"GET /healthz HTTP/1.1\r\nConnection: close\r\nX: ")
        client.sendall(b"y" * size)
        if status == b"200":
            client.sendall(b"\r\nHost: x\r\n\r\n")
        assert received(client).startswith(b"HTTP/1.1 " + status)


ELSEWHERE = (
    "/v1%2f@127.0.0.1:{port}/loot",
    "/v1%40127.0.0.1:{port}/loot",
    "/v1/..?x",
    "/v1/../loot",
    "/v1/%2e%2e/loot",
    "/v1/x/%2e%2e%2f..%2floot",
    "/v1/%252e%252e/loot",
    "/v1/%25252525252e%25252525252e/loot",
    "/v1/..;/loot",
    "/v1/.%3b/..%3bx/loot",
    "/v1/..%5cloot",
    "/v1/x%00",
    "/v1/x%7f",
)
INSIDE = (
    "/v1/models/org%2Fname",
    "/v1/a..b/...?up=../..",
    "/v1/files/a@b:1?q=%252e",
    "/v1/a%20b",
    "/v1/a%c2%80b",
)


@pytest.mark.parametrize("base", ["", "/v1"], ids=["host-alone", "below-v1"])
def test_no_path_leads_out_of_the_upstream(policy: Path, base: str) -> None:
    """Neither to another server nor out of the base URL."""
    seen: list[Seen] = []
    with (
        odd_server() as other,
        odd_server() as server,
        running(policy, server, check_every=60.0) as gateway,
    ):
        (upstream,) = gateway.gateway.pool.all
        upstream.url = upstream.url.removesuffix("/v1") + base
        server.wild = other.wild = says(http_reply(), seen)
        for path in ELSEWHERE:
            line = f"GET {path.format(port=other.port)} HTTP/1.1\r\n".encode()
            got = received(gateway.connect(line + b"Host: x\r\nConnection: close\r\n\r\n"))
            assert got.startswith(b"HTTP/1.1 404 "), path
    assert seen == []


@pytest.mark.parametrize("base", ["http://host:8000", "https://host/v1", "http://[::1]:1/a/v1"])
def test_a_target_stays_at_its_upstream(base: str) -> None:
    for path in ("//evil/x", "/@evil/x", "/x:1@evil", "/%2f@evil"):
        url = Target(path, "y=//evil").at(base)
        assert str(url) == f"{base}{path}?y=//evil"
        assert url.origin() == URL(base).origin()
    outside = [path.partition("?")[0].removeprefix("/v1") for path in ELSEWHERE]
    for path in ("", "@evil/x", ":1/x", ".evil", *outside):
        with pytest.raises(Refusal):
            Target(path)
    for path in INSIDE:
        Target(path.partition("?")[0].removeprefix("/v1"))


def test_what_stays_below_goes_through(server: OddServer, gateway: RunningGateway) -> None:
    seen: list[Seen] = []
    server.odd = {path.partition("?")[0]: says(http_reply(), seen) for path in INSIDE}
    for path in INSIDE:
        assert gateway.get(path).status == 200
    assert [asked.path for asked in seen] == list(INSIDE)


def test_methods_that_show_a_key_or_open_a_tunnel_are_refused(gateway: RunningGateway) -> None:
    for method in ("TRACE", "PROPFIND"):
        got = gateway.ask(path="/v1/models", method=method)
        assert (got.status, got.way) == (405, "passthrough; reason=path")


def test_headers_that_a_connection_names_stay_on_it(
    server: OddServer, gateway: RunningGateway
) -> None:
    seen: list[Seen] = []
    inner = ("Connection: X-Inner", "X-Inner: 1", "X-Outer: 2")
    server.odd["/v1/odd"] = says(http_reply(b"{}", *inner), seen)
    got = gateway.ask(b"{}", "/v1/odd", Connection="X-Hop, close", X_Hop="1", X_Kept="2")
    assert ("x-hop" in seen[0].headers, seen[0].headers["x-kept"]) == (False, "2")
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
    assert {given.get("authorization") for given in server.named} == {None, "Bearer of-a-client"}


def test_a_proxy_of_the_environment_is_used(
    server: OddServer, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Seen] = []
    with running(policy, server, check_every=60.0) as gateway, odd_server() as proxy:
        pool = gateway.gateway.pool
        monkeypatch.setenv("http_proxy", f"http://user:pass%21@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "elsewhere")
        gateway.gateway._forwarder._proxies = {u: proxy_of(u.url) for u in pool.all}
        proxy.wild = says(http_reply(), seen)
        assert gateway.get("/v1/odd").status == 200
    (asked,) = seen
    assert asked.path == f"{server.url}/odd"
    assert asked.headers["proxy-authorization"] == "Basic dXNlcjpwYXNzIQ=="


# --- Servers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("large", [False, True], ids=["redirection", "large"])
def test_a_list_of_models_is_short_and_where_it_was(
    server: OddServer, gateway: RunningGateway, large: bool
) -> None:
    listed = gateway.get("/v1/models").body
    found = http_reply(b"", "Location: /v1/elsewhere", status="302 Found")
    if large:
        found = http_reply(listed + b" " * 5 * 2**20)
    server.odd["/v1/elsewhere"] = says(http_reply(listed))
    server.odd["/v1/models"] = says(found)
    until(lambda: not gateway.gateway.is_ready)
    refused = gateway.ask(b"{}", "/v1/odd")
    assert (refused.status, refused.json["error"]["message"]) == (503, "no upstream is in use")
    del server.odd["/v1/models"]
    until(lambda: gateway.gateway.is_ready)


def test_a_server_that_lists_no_models_any_more_stays_in_use(
    server: OddServer, gateway: RunningGateway
) -> None:
    seen: list[Seen] = []
    server.odd["/v1/models"] = says(http_reply(b"", status="404 Not Found"), seen)
    until(lambda: len(seen) > 2)
    assert gateway.gateway.is_ready


def test_a_server_that_does_not_list_its_models_in_time_is_checked(
    server: OddServer, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(forwarder: Forwarder, upstream: Any, path: str) -> Any:
        raise TimeoutError

    monkeypatch.setattr(Forwarder, "get", late)
    server.odd["/v1/models"] = says(http_reply(b"", status="404 Not Found"))
    until(lambda: not gateway.gateway.is_ready)


@pytest.mark.parametrize("status", ["999", "000", "101", "600"])
def test_a_status_that_ends_no_request_is_not_passed_on(
    server: OddServer, gateway: RunningGateway, status: str
) -> None:
    server.odd["/v1/odd"] = says(http_reply(status=f"{status} Odd"))
    got = gateway.ask(b"{}", "/v1/odd")
    assert (got.status, got.json["error"]["type"]) == (502, "upstream_error")


def test_a_server_cannot_say_how_a_request_was_served(
    server: OddServer, gateway: RunningGateway
) -> None:
    forged = http_reply(b"{}", "X-StopAdvisor: policy; digest=f0f0f0f0")
    server.odd["/v1/odd"] = says(forged)
    asked = b"POST /v1/odd HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    got = received(gateway.connect(asked)).lower()
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
        server.odd["/v1/odd"] = says(http_reply(b"{}", "Content-Encoding: gzip"))
        assert gateway.ask(b"{}", "/v1/odd").status == 502
    hidden = [f"bad key {'*' * len(KEY)}", *("*" * len(text) for text in texts[1:3]), KEY[:-1]]
    assert got.body.decode().split("|") == hidden
    assert got.headers["x-key"] == "*" * len(KEY)


def test_a_connection_that_closes_before_a_reply_is_tried_once_more(
    server: OddServer, gateway: RunningGateway
) -> None:
    """As where the server closes a connection that it kept alive."""
    answers = iter((says(b""), says(http_reply())))
    server.odd["/v1/odd"] = lambda to, body: next(answers)(to, body)
    assert gateway.ask(b"{}", "/v1/odd").status == 200


def test_requests_that_make_a_server_fail_do_not_take_it_from_others(
    server: OddServer, policy: Path
) -> None:
    server.odd["/v1/odd"] = says(b"")
    with running(policy, server) as gateway:
        assert {gateway.ask(b"{}", "/v1/odd").status for _ in range(4)} == {502}
        assert gateway.ask(chat_body()).way == "policy; reason=covered"
        until(lambda: sum(line["event"] == "upstream-up" for line in gateway.lines) >= 2)
        assert "upstream-down" not in {line["event"] for line in gateway.lines}
