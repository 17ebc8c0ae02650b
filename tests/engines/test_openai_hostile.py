"""Hostile servers: endless or slow answers, malformed numbers, repeated keys."""

from __future__ import annotations

import gzip
import json
import math
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import Any, TypeVar

import pytest

from stopadvisor.engines.http.client import _MALFORMED, Client, Key, Refused, Unreachable
from stopadvisor.engines.http.completion import BodyLimits, StreamReader, read_completion
from stopadvisor.engines.http.servers import Servers
from stopadvisor.engines.openai import open_servers
from stopadvisor.ground.errors import EngineError
from tests.engines.fake_server import TINY, FakeServer, Story, _send, fake_server, ids_of
from tests.engines.test_openai_client import SECRET, asked, prompt_ids
from tests.engines.test_openai_engine import PLAN, prompts
from tests.engines.tiny import traces_of

_Result = TypeVar("_Result")
Write = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Raw(FakeServer):
    """Answers every completion with bytes chosen by the test."""

    write: Write = lambda to: None
    sent: int = 0
    """Bytes of an endless body sent so far."""

    def _complete(
        self, to: BaseHTTPRequestHandler, body: dict[str, Any], fault: str | None
    ) -> None:
        to.close_connection = True
        self.write(to)


def raw(write: Write) -> Raw:
    return Raw(write=write)


def begin(to: BaseHTTPRequestHandler, **headers: str) -> None:
    to.send_response(200)
    for name, value in headers.items():
        to.send_header(name.replace("_", "-"), value)
    to.end_headers()


def whole(client: Client) -> Awaitable[Any]:
    return client.complete(prompt_ids(), max_tokens=2)


def stream(client: Client) -> Awaitable[Any]:
    return client.complete(prompt_ids(), take=lambda new: True, max_tokens=2)


def peak_while(work: Callable[[], None]) -> int:
    """Return the peak memory of Python objects, in bytes."""
    import tracemalloc

    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# --- Bytes ---


def endless(server: Raw, piece: bytes) -> Write:
    def write(to: BaseHTTPRequestHandler) -> None:
        begin(to)
        while server.sent < 2**28:
            to.wfile.write(piece)
            server.sent += len(piece)

    return write


@pytest.mark.slow
@pytest.mark.parametrize("ask", [whole, stream])
@pytest.mark.parametrize(
    "piece",
    [b" " * 2**16, b"data: \n" * 2**13, b": ping\n\n" * 2**13],
    ids=["line", "data", "ping"],
)
def test_a_body_without_end_is_given_up(
    ask: Callable[[Client], Awaitable[Any]], piece: bytes
) -> None:
    if ask is stream and piece.startswith(b"data"):
        piece = (b'data: {"choices": []' + b" " * 200 + b"}\n") * 2**9

    def work() -> None:
        with raw(lambda to: None) as server:
            server.write = endless(server, piece)
            with pytest.raises(Refused, match=r"sends (more|a line of more) than"):
                asked([server], ask, retry_timeout=30.0)
        assert server.sent < 2**25
        assert len(server.asked) == 1

    assert peak_while(work) < 2**26


@pytest.mark.parametrize("ask", [whole, stream])
def test_an_archive_is_not_unpacked(ask: Callable[[Client], Awaitable[Any]]) -> None:
    packed = gzip.compress(b" " * 2**24)

    def write(to: BaseHTTPRequestHandler) -> None:
        assert to.headers["Accept-Encoding"] == "identity"
        begin(to, Content_Encoding="gzip", Content_Length=str(len(packed)))
        to.wfile.write(packed)

    with (
        raw(write) as server,
        pytest.raises(Refused, match="Content-Encoding 'gzip', which was not asked for"),
    ):
        asked([server], ask)


def test_a_refusal_without_end_is_given_up() -> None:
    def write(to: BaseHTTPRequestHandler) -> None:
        to.send_response(400)
        to.end_headers()
        while True:
            to.wfile.write(b"no! " * 2**14)

    with raw(write) as server, pytest.raises(Refused, match="refuses the request: 400 no! no!"):
        asked([server], whole)


def test_honest_answers_have_room() -> None:
    """A long streamed trace, and a probe with the most log-probabilities that vLLM may return."""
    event = {
        "id": "cmpl-" + "0" * 32, "object": "text_completion", "created": 1_760_000_000,
        "model": "x" * 100, "system_fingerprint": None,
        "choices": [{
            "index": 0, "text": "\U0001f642" * 4, "logprobs": None, "finish_reason": None,
            "stop_reason": None, "token_ids": [151_643], "prompt_token_ids": None,
        }],
        "usage": {"prompt_tokens": 100_000, "total_tokens": 130_000, "completion_tokens": 30_000},
    }  # fmt: skip
    tokens = 2**15
    assert len(json.dumps(event)) * tokens < BodyLimits.of({"max_tokens": tokens}).total
    top = {f"token_id:{151_000 + i}": -12.345678901234567 for i in range(1024)}
    probe = BodyLimits.of({"max_tokens": 48, "logprobs": 1024, "prompt": [1] * 100_000})
    assert len(json.dumps(top)) * 48 + len(json.dumps([151_643] * 100_000)) < probe.total
    # And none has room enough to fill the memory.
    assert probe.total < 13_000_000
    assert BodyLimits.of({"max_tokens": tokens}).total < 2**28
    assert BodyLimits.of({"max_tokens": 10**12}).total < 2**33


# --- Time ---


def dripping(piece: bytes, head: bytes | None = None) -> Write:
    """Write `piece` now and then without end, after a complete response head or `head`."""

    def write(to: BaseHTTPRequestHandler) -> None:
        if head is None:
            begin(to)
        else:
            to.wfile.write(head)
        while True:
            to.wfile.write(piece)
            time.sleep(0.05)

    return write


@pytest.mark.parametrize("ask", [whole, stream])
@pytest.mark.parametrize(
    "write",
    [
        dripping(b" "),
        dripping(b": ping\n\n"),
        dripping(b"X-Some: 1\r\n", b"HTTP/1.1 200 OK\r\n"),
        dripping(b"HTTP/1.1 100 Continue\r\n\r\n", b""),
    ],
    ids=["blanks", "events", "headers", "continuing"],
)
def test_one_answer_has_so_much_time_in_all(
    write: Write, ask: Callable[[Client], Awaitable[Any]]
) -> None:
    with (
        raw(write) as server,
        pytest.raises(Unreachable, match="no answer within --request-timeout"),
    ):
        asked([server], ask, request_timeout=0.4, retry_timeout=0.1)


def test_a_stream_that_runs_out_of_time_keeps_what_came() -> None:
    got: list[int] = []

    def take(new: Any) -> bool:
        got.extend(new)
        return True

    with fake_server(pace=0.15) as server:
        answer = asked(
            [server],
            lambda c: c.complete(prompt_ids(), take=take, max_tokens=9),
            request_timeout=0.5,
        )
    assert answer.finish_reason == "broken"
    assert 0 < len(got) < 9
    assert got == ids_of(server.story.thinking)[: len(got)]
    assert len(server.asked) == 1


# --- Numbers and forms ---


def answer_with(**changes: Any) -> dict[str, Any]:
    choice = {
        "text": "ab", "token_ids": [5, 6], "finish_reason": "stop",
        "logprobs": {"token_logprobs": [-0.1, -0.2], "top_logprobs": [{"a": -0.1}, {"b": -0.2}]},
    }  # fmt: skip
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    for name, value in changes.items():
        if name in ("token_logprobs", "top_logprobs"):
            choice["logprobs"][name] = value  # type: ignore[index]
        elif name in choice:
            choice[name] = value
        else:
            usage[name] = value
    return {"choices": [choice], "usage": usage}


WRONG: list[tuple[str, Any]] = [
    ("token_ids", [5, -6]),
    ("token_ids", [5, 6.0]),
    ("token_ids", ["5", "6"]),
    ("token_ids", [5, True]),
    ("token_ids", [5, 2**31]),
    ("token_ids", [5, 10**400]),
    ("token_ids", [5, None]),
    ("token_logprobs", [-0.1, 5.0]),
    ("token_logprobs", [-0.1, math.nan]),
    ("token_logprobs", [-0.1, -math.inf]),
    ("token_logprobs", [-0.1, math.inf]),
    ("token_logprobs", [-0.1, -(10**400)]),
    ("token_logprobs", [-0.1, "-0.2"]),
    ("token_logprobs", [-0.1, False]),
    ("top_logprobs", [{"a": -0.1}, {"b": 5.0}]),
    ("top_logprobs", [{"a": -0.1}, {"b": math.nan}]),
    ("top_logprobs", [{"a": -0.1}, {"b": "-1"}]),
    ("top_logprobs", [{"a": -0.1}, [1]]),
    ("prompt_tokens", -3),
    ("prompt_tokens", "3"),
    ("prompt_tokens", 3.5),
    ("prompt_tokens", 10**30),
    ("completion_tokens", -1),
    ("completion_tokens", True),
    ("prompt_tokens_details", {"cached_tokens": -32}),
    ("prompt_tokens_details", {"cached_tokens": "32"}),
    ("prompt_tokens_details", 7),
    ("finish_reason", ["stop"]),
]


def written(data: Any) -> Write:
    text = json.dumps(data).encode()

    def write(to: BaseHTTPRequestHandler) -> None:
        begin(to, Content_Length=str(len(text)))
        to.wfile.write(text)

    return write


def events(data: Any) -> Write:
    """The same as a stream of one event."""

    def write(to: BaseHTTPRequestHandler) -> None:
        begin(to)
        to.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")

    return write


@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda value: f"{value!r:.40}")
def test_numbers_that_are_none_are_malformed(name: str, value: Any) -> None:
    with pytest.raises(_MALFORMED):
        read_completion(answer_with(**{name: value}))


def test_what_is_malformed_ends_in_one_line() -> None:
    wrong = written(answer_with(token_ids=[5, 10**400]))
    with raw(wrong) as server, pytest.raises(EngineError) as caught:
        asked([server], whole, retry_timeout=0.1)
    said = str(caught.value)
    assert "malformed answer (" in said
    assert "\n" not in said
    assert len(said) < 300


def test_numbers_within_rounding_are_numbers() -> None:
    tops = [{"a": 1e-6, "b": -1e9}, {"b": -math.inf}]
    found = read_completion(answer_with(token_logprobs=[1e-6, -0.2], top_logprobs=tops))
    assert found.logprobs == (0.0, -0.2)
    assert found.top_logprobs == ((0.0, -1e9), (-math.inf,))
    assert read_completion(answer_with(prompt_tokens=None)).prompt_tokens == 0


@pytest.mark.parametrize("reason", ["eos", "eos_token", "stop_sequence", "stop"])
def test_an_end_has_many_names(reason: str) -> None:
    assert read_completion(answer_with(finish_reason=reason)).finish_reason == "stop"
    reader = StreamReader(lambda new: True)
    for finish, token in (("", 5), (reason, 6)):
        assert reader.read({"choices": [{"token_ids": [token], "finish_reason": finish}]})
    assert (reader.result().finish_reason, reader.result().token_ids) == ("stop", (5, 6))


@pytest.mark.parametrize("ask", [whole, stream])
@pytest.mark.parametrize("reason", ["content_filter", "tool_calls"])
def test_an_answer_that_is_cut_off_for_good_is_not_asked_for_again(
    reason: str, ask: Callable[[Client], Awaitable[Any]]
) -> None:
    data = answer_with(finish_reason=reason)
    with raw(written(data) if ask is whole else events(data)) as server:
        with pytest.raises(Refused) as caught:
            asked([server], ask)
        assert f"{server.url} ended an answer with finish_reason '{reason}'" in str(caught.value)
    assert len(server.asked) == 1


@pytest.mark.parametrize("reason", ["abort", "insufficient_system_resource"])
def test_an_answer_that_was_given_up_is_asked_for_again(reason: str) -> None:
    with raw(written(answer_with(finish_reason=reason))) as server:
        with pytest.raises(EngineError, match=reason) as caught:
            asked([server], whole, retry_timeout=0.5)
        assert not isinstance(caught.value, Refused)
    assert len(server.asked) > 1


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"choices": ' * 50_000,
        b'{"choices": [{"text": "", "token_ids": [1e999], "finish_reason": "stop"}]}',
        b'{"choices": [{"text": "", "token_ids": ['
        + b"9" * 5000
        + b'], "finish_reason": "stop"}]}',
        b"\xff\xfe",
        b"null",
        b"[]",
        b'"x"',
        b"",
    ],
    ids=["lists", "objects", "1e999", "digits", "no text", "null", "list", "string", "nothing"],
)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_what_is_no_answer_ends_in_one_line(text: bytes, streamed: bool) -> None:
    def write(to: BaseHTTPRequestHandler) -> None:
        begin(to)
        to.wfile.write(b"data: " + text + b"\n\n" if streamed else text)

    with raw(write) as server, pytest.raises(EngineError, match="malformed answer") as caught:
        asked([server], stream if streamed else whole, retry_timeout=0.1)
    assert "\n" not in str(caught.value)


# --- The key ---


class Echo(FakeServer):
    """Repeats the request's header in everything it returns."""

    def get(self, to: BaseHTTPRequestHandler) -> None:
        sent = to.headers.get("Authorization", "")
        if to.path == "/v1/models":
            entry = {"id": self.model, "root": f"someone/{sent}", "max_model_len": 1024}
            _send(to, 200, {"data": [entry], sent: sent})
        elif to.path == "/version":
            _send(to, 200, {"version": f"1.0 {sent}"})
        else:
            super().get(to)


def test_a_placeholder_is_no_secret() -> None:
    """A server that accepts any key is often given a short word, which answers may contain."""
    key = Key("EMPTY", "A_KEY")
    assert key.hide_in_text("the set is EMPTY") == "the set is EMPTY"
    assert key.hide_in_data({"EMPTY": ["EMPTY"]}) == {"EMPTY": ["EMPTY"]}


@pytest.mark.parametrize("secret", [SECRET, 'sk-"quoted"\\0123'])
def test_the_key_is_taken_out_of_data_wherever_it_stands(secret: str) -> None:
    data = {f"a {secret}": [{"b": f"{secret}{secret}", "c": 5}, None, f"x{secret}"], "d": "plain"}
    hidden = Key(secret, "A_KEY").hide_in_data(data)
    assert secret not in json.dumps(hidden, ensure_ascii=False).replace("\\\\", "\\")
    assert hidden["a [A_KEY]"][0] == {"b": "[A_KEY][A_KEY]", "c": 5}
    assert hidden["d"] == "plain"


def test_the_key_is_taken_out_of_a_header() -> None:
    def write(to: BaseHTTPRequestHandler) -> None:
        begin(to, X_Said=f"under {SECRET}")
        to.wfile.write(b"{}")

    with raw(write) as server:
        ask = partial(Client.ask, method="POST", path="/completions", header="X-Said")
        assert asked([server], ask, key=Key(SECRET, "A_KEY")) == {"X-Said": "under [A_KEY]"}


# --- Servers that are down, and Ctrl-C ---


def test_questions_go_to_servers_that_work() -> None:
    servers = Servers(["http://a/v1", "http://b/v1", "http://c/v1"])
    servers.pick(1).rest(30.0)
    assert [servers.assign_replica() for _ in range(4)] == [0, 2, 0, 2]


def test_a_server_that_stays_down_is_tried_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("stopadvisor.engines.http.servers.time.monotonic", lambda: now)
    servers = Servers(["http://a/v1", "http://b/v1"])
    tried = 0
    for _ in range(6000):  # ten minutes
        server = servers.pick(0)
        if server.url == "http://a/v1":
            tried += 1
            # While one request tests the server, the others do not wait for it.
            assert servers.pick(0).url == "http://b/v1" or tried == 1
            server.rest()
            server.rest()  # the failure of a concurrent request
        now += 0.1
    assert 10 <= tried <= 20
    servers.pick(0)
    servers._all[0].worked()
    assert servers.pick(0).url == "http://a/v1"


@pytest.mark.parametrize("how", ["down", "silent", "busy"])
def test_opening_can_be_interrupted(how: str) -> None:
    server = FakeServer(always="500" if how == "busy" else None, delay=30 if how == "silent" else 0)
    server.start()
    if how == "down":
        server.stop()
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    timer = threading.Timer(0.7, signal.pthread_kill, (main_thread, signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            open_servers("tiny-reasoner", [server.url], retry_timeout=3_600.0)
    finally:
        timer.cancel()  # where opening ended by itself
        timer.join()
        server.stop()


def test_a_key_of_the_environment_reaches_the_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """No output of the engine contains the key, whatever ids and names a server makes up."""
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    story = Story(f"{SECRET}\n", f"Bearer {SECRET}", lambda tokens: f" {SECRET}\n")
    with Echo(story=story) as server:
        engine = open_servers("tiny-reasoner", [server.url], tokenizer=str(TINY), retry_timeout=1.0)
        (trace,) = traces_of(engine, prompts(1), replace(PLAN, cap=48))
        told = repr((engine.identity(), engine.remarks, engine.engine_checks(prompts(1)[0], PLAN)))
        engine.close()
    assert trace.thinking == "[OPENAI_API_KEY]\n"
    assert trace.natural_text == "Bearer [OPENAI_API_KEY]"
    assert {probe.text for probe in trace.probes} == {" [OPENAI_API_KEY]"}
    assert "someone/Bearer [OPENAI_API_KEY]" in told
    assert SECRET not in told
    assert os.environ["OPENAI_API_KEY"] == SECRET
