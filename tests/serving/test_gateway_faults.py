"""The gateway where something goes wrong: servers, clients and networks, one at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import IncompleteRead
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.engines.fake_server import Story, fake_server
from tests.serving.gateways import (
    PATIENCE,
    Answer,
    OddServer,
    RunningGateway,
    chat_body,
    http_reply,
    odd_server,
    received,
    running,
    says,
    until,
)


@pytest.fixture
def server() -> Iterator[OddServer]:
    with odd_server() as server:
        yield server


@pytest.fixture(scope="module")
def shared(policies: Path) -> Iterator[tuple[OddServer, RunningGateway]]:
    """A server and its gateway, for tests that leave both as they were."""
    with odd_server() as server, running(policies / "never.json", server) as gateway:
        yield server, gateway


@contextmanager
def two_servers(pace: float = 0.0) -> Iterator[list[OddServer]]:
    with odd_server(pace=pace) as first, odd_server(pace=pace) as second:
        yield [first, second]


def all_up(gateway: RunningGateway) -> None:
    until(lambda: all(upstream.is_up for upstream in gateway.gateway.pool.all))


# --- The client leaves ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("holds", "fields"),
    [
        ("silent-thinking", {"stream": True}),
        ("thinking", {"stream": False}),
        ("thinking", {"stream": True}),
        ("probe", {"stream": False}),
        ("silent-chat", {"n": 2, "stream": False}),
        ("chat", {"n": 2, "stream": True}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_work_for_a_client_that_has_left_is_given_up(
    shared: tuple[OddServer, RunningGateway], holds: str, fields: dict[str, Any]
) -> None:
    server, gateway = shared
    idle, requests = gateway.tasks(), len(gateway.records)
    server.held = server.left = 0
    server.holds = holds
    client = gateway.send(chat_body(**fields))
    until(lambda: server.held > 0)
    assert not server.left
    client.close()
    until(lambda: server.left > 0)
    server.holds = ""
    record = gateway.record(requests + 1)
    assert record["error"] == "client-gone"
    assert (record["think_tokens"] > 0) == (holds in ("thinking", "probe"))
    assert gateway.ask(chat_body()).status == 200
    until(lambda: gateway.tasks() <= idle)
    assert sum(upstream.in_flight for upstream in gateway.gateway.pool.all) == 0


def test_a_client_that_leaves_the_queue_takes_no_place(server: OddServer, policies: Path) -> None:
    with running(policies / "stops.json", server, concurrency=1) as gateway:
        server.holds = "silent-chat"
        first = gateway.send(chat_body(n=2))
        until(lambda: server.held == 1)
        waiting = [gateway.send(chat_body(n=2)) for _ in range(2)]
        until(lambda: "requests_waiting 2.0" in gateway.get("/metrics").body.decode())
        full = gateway.ask(chat_body(n=2))
        assert (full.status, full.json["error"]["type"]) == (429, "rate_limit_exceeded")
        assert 1 <= int(full.headers["retry-after"]) <= 60
        for client in waiting:
            client.close()
        until(lambda: "requests_waiting 0.0" in gateway.get("/metrics").body.decode())
        assert server.held == 1, "it never reached the server"
        first.close()
        server.holds = ""
        assert gateway.ask(chat_body()).way == "policy; reason=covered"


def test_a_reader_that_falls_asleep_is_left(server: OddServer, policies: Path) -> None:
    """Neither a stream that goes through nor one under the policy is held open for it."""
    endless = b"data: " + b"x" * 2**16 + b"\n\n"

    def answer(to: BaseHTTPRequestHandler, body: bytes) -> None:
        says(b"HTTP/1.1 200 OK\r\n\r\n")(to, body)
        try:
            while True:
                to.wfile.write(endless)
        except OSError:
            server.left += 1

    server.odd["/v1/chat/completions"] = answer
    with running(policies / "stops.json", server, timeouts={"between": 0.3}) as gateway:
        client = gateway.send(chat_body(n=2, stream=True))
        until(lambda: server.left > 0)
        assert gateway.record()["error"] == "TimeoutError"
        client.close()
        idle = gateway.tasks()
        assert gateway.ask(chat_body()).status == 200
        until(lambda: gateway.tasks() <= idle)


# --- The server fails -----------------------------------------------------------------------------


def test_an_idle_connection_that_is_reset_costs_no_request(
    server: OddServer, policies: Path
) -> None:
    """The server closes it just as it is used; there may be more like it."""
    both = threading.Barrier(2)

    def answer(to: BaseHTTPRequestHandler, body: bytes) -> None:
        if body == b"at once":
            both.wait(PATIENCE)
        to.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    server.odd["/v1/odd"] = answer
    with running(policies / "never.json", server) as gateway:
        server.keeps = False
        with ThreadPoolExecutor(2) as threads:
            asked = [threads.submit(gateway.ask, b"at once", "/v1/odd") for _ in range(2)]
        assert {one.result().status for one in asked} == {200}
        assert [gateway.ask(b"", "/v1/odd").status for _ in range(2)] == [200, 200]
        assert server.resets == 2, "each at its idle connection, none at that of a second try"
        server.resets = 0
        assert gateway.ask(chat_body()).way == "policy; reason=covered"
        assert gateway.record(5)["failed_probes"] == 0
        assert server.resets > 0
        assert gateway.gateway.pool.all[0].failures == 0


@pytest.mark.parametrize(
    ("holds", "fields"),
    [("silent-chat", {"n": 2}), ("silent-thinking", {}), ("silent-thinking", {"stream": True})],
    ids=["forwarded", "whole", "stream"],
)
def test_a_request_whose_time_runs_out_is_asked_once(
    policies: Path, holds: str, fields: dict[str, Any]
) -> None:
    with (
        two_servers() as servers,
        running(policies / "never.json", *servers, timeouts={"total": 1.0}) as gateway,
    ):
        all_up(gateway)
        for server in servers:
            server.holds = holds
        answer = gateway.ask(chat_body(**fields))
        assert (answer.status, answer.json["error"]["type"]) == (504, "upstream_error")
        assert gateway.record()["status"] == 504
        assert sum(server.held for server in servers) == 1


def test_a_stalled_server_is_not_waited_for(server: OddServer, policies: Path) -> None:
    limits = {"first": 0.2, "between": 0.2, "total": 0.4, "probe": 0.2}
    with running(policies / "never.json", server, timeouts=limits) as gateway:
        server.holds = "silent-chat"
        for stream in (False, True):
            answer = gateway.ask(chat_body(n=2, stream=stream))
            assert (answer.status, answer.json["error"]["type"]) == (504, "upstream_error")
        until(lambda: gateway.gateway.is_ready)
        server.holds = "chat"  # falls silent after the third token
        got = received(gateway.send(chat_body(n=2, stream=True)))
        assert got.startswith(b"HTTP/1.1 200")
        assert not got.endswith(b"0\r\n\r\n"), "nobody can take it for a whole one"


@pytest.mark.parametrize("fault", ["cut-short", "cut-line", "abort-short", "error-short"])
def test_half_an_answer(shared: tuple[OddServer, RunningGateway], fault: str) -> None:
    """Without the policy it is forwarded as it came; under it the thinking is resumed."""
    server, gateway = shared
    body = chat_body(n=2, stream=True)
    server.faults.append(fault)
    with pytest.raises(IncompleteRead) as broken:  # though nothing but the end says so
        gateway.ask(body)
    server.faults.append(fault)
    assert broken.value.partial == gateway.ask(body, port=server.port).body
    server.faults.append(fault)
    answer = gateway.ask(chat_body(stream=True))
    assert answer.text("reasoning") == Story().thinking
    assert answer.text("content") == Story().visible


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_a_reply_without_a_body_may_name_the_length_of_one(
    server: OddServer, policies: Path, status: str
) -> None:
    server.odd["/v1/files"] = says(f"HTTP/1.1 {status}\r\nContent-Length: 5\r\n\r\n".encode())
    with running(policies / "never.json", server) as gateway:
        answer = gateway.get("/v1/files")
        assert (answer.status, answer.body) == (int(status[:3]), b"")
        assert "error" not in gateway.record()


INJECTED = '7\n\ndata: {"choices": []}\r\n\r\nevent: end\ndata: [DONE]\n\n\x00\u2028 </think>'


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_a_model_says_is_no_event(policies: Path, stream: bool) -> None:
    """Events of its own, line ends of every kind and NUL come as text, in a reply of one shape."""
    story = Story(visible=INJECTED)
    with fake_server(story=story) as server, running(policies / "never.json", server) as gateway:
        answer = gateway.ask(chat_body(stream=stream))
    assert answer.way == "policy; reason=covered"
    if stream:
        assert answer.text("content") == INJECTED
        assert {len(event["choices"]) for event in answer.events} == {1}
    else:
        assert answer.json["choices"][0]["message"]["content"] == INJECTED


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00: nothing\n\n",
        b"event: error\nid: 7\nretry: 1\n\n",
        b"data: \x00\x00\n\n",
        b"data: " + b"[" * 100_000 + b"\n\n",
        b'data: {"choices": [{"text": 7}], "choices": {}}\n\n',
        b"data: [DONE]\n\n",
        b"data: " + b"x" * 2**24 + b"\n\n",
        b"x" * 2**24,
    ],
    ids=["nul", "fields", "nul data", "nested", "twice", "ended", "long event", "long line"],
)
def test_a_hostile_stream_costs_no_request(
    shared: tuple[OddServer, RunningGateway], sent: bytes
) -> None:
    """Its lines reach no client, and the request is answered in full."""
    server, gateway = shared
    server.preface = sent
    try:
        answer = gateway.ask(chat_body(stream=True))
    finally:
        server.preface = b""
    assert answer.status == 200
    assert answer.text("content") == Story().visible
    assert answer.text("reasoning") + answer.text("reasoning_content") in (
        Story().thinking,
        2 * Story().thinking,
    )
    assert len(answer.body) < 2**16
    assert gateway.ask(chat_body()).way == "policy; reason=covered"


def test_a_server_that_is_killed_in_a_stream_ends_it_with_an_error(
    server: OddServer, policies: Path
) -> None:
    server.pace = 0.05
    with running(policies / "never.json", server) as gateway:
        client = gateway.send(chat_body(stream=True))
        got = client.recv(2**16)
        server.kill()
        got += received(client)
        assert gateway.record()["error"] in ("Unreachable", "EngineError")
    assert b'"error"' in got
    assert got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert Story().visible.encode() not in got


@pytest.mark.slow
def test_a_dead_server_costs_no_request_and_comes_back(policies: Path) -> None:
    with (
        two_servers() as (first, second),
        running(policies / "stops.json", first, second) as gateway,
    ):
        mine = gateway.gateway.pool.all[0]
        all_up(gateway)
        first.kill()
        ways = [gateway.ask(chat_body(n=1 + i % 2)) for i in range(12)]
        assert {answer.status for answer in ways} == {200}
        assert {answer.way.partition(";")[0] for answer in ways} == {"policy", "passthrough"}
        until(lambda: not mine.is_up)
        assert 'stopadvisor_upstream_up{upstream="0"} 0.0' in gateway.get("/metrics").body.decode()
        assert gateway.get("/readyz").status == 200
        # Another model under the same address is not taken for the one that was there.
        first.context = 700
        first.start()
        time.sleep(1.0)
        assert not mine.is_up
        first.context = 1024
        until(lambda: mine.is_up)
        second.kill()
        assert {gateway.ask(chat_body()).way for _ in range(4)} == {"policy; reason=covered"}
        first.kill()
        last = [gateway.ask(chat_body()) for _ in range(4)]
        assert {answer.status for answer in last} <= {502, 503}
        until(lambda: gateway.get("/readyz").status == 503)


@pytest.mark.slow
def test_a_server_that_is_killed_under_load_makes_no_reply_wrong(policies: Path) -> None:
    with two_servers(pace=0.003) as servers, running(policies / "never.json", *servers) as gateway:
        all_up(gateway)
        with ThreadPoolExecutor(12) as threads:
            asked = [
                threads.submit(gateway.ask, chat_body(f"{n}+4", stream=n % 2 == 1))
                for n in range(36)
            ]
            until(lambda: sum(one.done() for one in asked) >= 12)
            servers[0].kill()
        answers = [one.result() for one in asked]
        until(lambda: not any(upstream.in_flight for upstream in gateway.gateway.pool.all))
    assert {answer.status for answer in answers} == {200}
    story, broken = Story(), [answer for answer in answers if b'"error"' in answer.body]
    assert all(answer in answers[1::2] for answer in broken), "their streams had begun"
    for number, answer in enumerate(answers):
        if number % 2 == 0:
            message = answer.json["choices"][0]["message"]
            said = (message["reasoning_content"], message["content"])
        else:
            said = (answer.text("reasoning_content"), answer.text("content"))
        if answer in broken:
            assert story.thinking.startswith(said[0])
            assert story.visible.startswith(said[1])
        else:
            assert said == (story.thinking, story.visible)


def test_a_busy_server_is_left_for_another(policies: Path) -> None:
    with (
        two_servers() as (first, second),
        running(policies / "stops.json", first, second) as gateway,
    ):
        for status in (502, 503, 504):
            all_up(gateway)
            busy = says(http_reply(b"busy", status=f"{status} Busy"))
            first.odd["/v1/chat/completions"] = busy
            assert [gateway.ask(chat_body(n=2)).status for _ in range(3)] == [200] * 3
            second.odd["/v1/chat/completions"] = busy
            answer = gateway.ask(chat_body(n=2))
            assert (answer.status, answer.body) == (status, b"busy")
            first.odd.clear()
            second.odd.clear()


@pytest.mark.slow
def test_requests_go_where_the_fewest_are_and_probes_stay_there(policies: Path) -> None:
    with two_servers(pace=0.003) as servers, running(policies / "never.json", *servers) as gateway:
        all_up(gateway)
        for server in servers:
            server.asked.clear()
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: gateway.ask(chat_body(f"{n}+4")), range(16)))
    sent = [[tuple(body["prompt"]) for body in server.asked] for server in servers]
    length = min(map(len, sent[0]))
    questions = [{prompt[:length] for prompt in prompts} for prompts in sent]
    assert all(len(found) >= 6 for found in questions)
    assert not questions[0] & questions[1]


# --- Reload and end -------------------------------------------------------------------------------


@pytest.mark.slow
def test_policies_are_replaced_under_load(
    server: OddServer, policies: Path, tmp_path: Path
) -> None:
    path = tmp_path / "policy.json"
    contents = [(policies / f"{name}.json").read_bytes() for name in ("stops", "never")]
    path.write_bytes(contents[0])
    answers: list[Answer] = []
    with running(path, server) as gateway:
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                answers.append(gateway.ask(chat_body(stream=len(answers) % 2 == 0)))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for turn in range(1, 5):
            path.write_bytes(contents[turn % 2])
            gateway.reload()
        over.set()
        for thread in threads:
            thread.join()
    assert {(a.status, a.way) for a in answers} == {(200, "policy; reason=covered")}
    assert len({a.headers["x-stopadvisor"] for a in answers}) == 2


def test_requests_under_way_are_ended_before_the_gateway_is(
    server: OddServer, policies: Path
) -> None:
    server.pace, left = 0.02, list[float]()

    async def drain(seconds: float) -> None:
        left.append(seconds)

    with running(policies / "never.json", server, grace=60.0) as gateway:
        gateway.gateway.auditors.drain = drain  # type: ignore[method-assign]
        client = gateway.send(chat_body(stream=True))
        got = client.recv(2**16)
    assert 0 < left[0] < 60.0, "audits have what requests leave"
    assert not gateway.gateway.is_ready
    got += received(client)
    assert got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
