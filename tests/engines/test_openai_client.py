"""The client at a misbehaving server: it retries, gives up, and never shows the key."""

from __future__ import annotations

import asyncio
import json
import math
import pickle
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import httpx2
import pytest

from stopadvisor.engines.http.client import Client, Key, Refused
from stopadvisor.engines.http.completion import Body, BodyLimits, read_events
from stopadvisor.engines.http.servers import MalformedError, Patience, Server, TransientError
from stopadvisor.ground.errors import EngineError, ModelError
from tests.engines.conftest import Pauses
from tests.engines.fake_server import FAULTS, FakeServer, fake_server, ids_of, logprob, words

SECRET = "sk-not-to-be-seen-0123456789"
_Result = TypeVar("_Result")


def prompt_ids() -> list[int]:
    return words().prompt_ids([{"role": "user", "content": "3+4"}])


def asked(
    servers: list[FakeServer], work: Callable[[Client], Awaitable[_Result]], **options: Any
) -> _Result:
    async def main() -> _Result:
        urls = [server.url for server in servers]
        async with Client(urls, "tiny-reasoner", **options) as client:
            return await work(client)

    return asyncio.run(main())


def test_an_answer_is_read_whole() -> None:
    with fake_server() as server:
        answer = asked([server], lambda c: c.complete(prompt_ids(), max_tokens=3, logprobs=4))
    expected = tuple(ids_of(server.story.thinking)[:3])
    assert answer.token_ids == expected
    assert answer.logprobs == tuple(logprob(i) for i in expected)
    assert answer.top_logprobs is not None
    assert [len(top) for top in answer.top_logprobs] == [4, 4, 4]
    assert all(list(top) == sorted(top, reverse=True) for top in answer.top_logprobs)
    assert answer.finish_reason == "length"
    assert answer.prompt_tokens == len(prompt_ids())
    assert answer.cached_tokens == len(prompt_ids()) // 32 * 32
    (body,) = server.asked
    assert body["prompt"] == prompt_ids()
    assert body["return_token_ids"]
    assert body["return_tokens_as_token_ids"]


@pytest.mark.usefixtures("pauses")
@pytest.mark.parametrize("fault", FAULTS)
def test_what_passes_is_asked_again(fault: str) -> None:
    with fake_server(faults=[fault, fault]) as server:
        ask = partial(Client.complete, prompt=prompt_ids(), max_tokens=3)
        answer = asked([server], ask, request_timeout=0.5)
    assert answer.token_ids == tuple(ids_of(server.story.thinking)[:3])
    assert len(server.asked) == 3
    assert server.asked[0] == server.asked[2]


def test_a_server_may_say_how_long_to_wait(pauses: Pauses) -> None:
    with fake_server(faults=["429"]) as server:
        asked([server], lambda c: c.complete(prompt_ids(), max_tokens=1))
    assert pauses.taken == [1.0]


@pytest.mark.parametrize("fault", ["500", "truncated", "close"])
def test_retrying_ends(fault: str, pauses: Pauses) -> None:
    with (
        fake_server(always=fault) as server,
        pytest.raises(EngineError, match=r"^no answer for 1 s from http://127.0.0.1:"),
    ):
        asked([server], lambda c: c.complete(prompt_ids(), max_tokens=1), retry_timeout=1.0)
    assert sum(pauses.taken) == pytest.approx(1.0)
    assert len(server.asked) == 1 + len(pauses.taken)


def test_a_refusal_is_not_asked_again() -> None:
    with (
        fake_server() as server,
        pytest.raises(Refused, match="refuses the request: 400 at most 20 logprobs") as caught,
    ):
        asked([server], lambda c: c.complete(prompt_ids(), max_tokens=1, logprobs=21))
    assert caught.value.status == 400
    assert len(server.asked) == 1


def events_of(*chunks: bytes) -> list[Any]:
    async def given() -> Any:
        for chunk in chunks:
            yield chunk

    async def read() -> list[Any]:
        body = Body(httpx2.Response(200, content=given()), BodyLimits(), math.inf)
        return [event async for event in read_events(body.lines())]

    return asyncio.run(read())


def test_events_are_cut_at_newlines_alone() -> None:
    said = "a\u2028b\x85c\x0bd"
    line = b"data: " + json.dumps({"text": said}, ensure_ascii=False).encode() + b"\r\n\r\n"
    whole = b": hello\n\n" + line + b"event: x\n" + line + b"data: [DONE]\n\n" + line
    expected = [{"text": said}] * 2
    assert events_of(whole) == expected
    assert events_of(*(whole[i : i + 1] for i in range(len(whole)))) == expected


def test_a_stream_may_be_left_when_enough_came() -> None:
    came: list[int] = []

    def take(new: Any) -> bool:
        came.extend(new)
        return len(came) < 5

    with fake_server() as server:
        answer = asked([server], lambda c: c.complete(prompt_ids(), take=take, max_tokens=50))
    assert answer.finish_reason == "closed"
    assert list(answer.token_ids or ()) == came == ids_of(server.story.thinking)[:5]


# --- How long is waited ---------------------------------------------------------------------------


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as a list of it alone; pauses are as long as they may be."""
    clock = [100.0]
    time, random = (
        SimpleNamespace(monotonic=lambda: clock[0]),
        SimpleNamespace(uniform=lambda _, most: most),
    )
    monkeypatch.setattr("stopadvisor.engines.http.servers.time", time)
    monkeypatch.setattr("stopadvisor.engines.http.servers.random", random)
    return clock


def test_a_server_rests_twice_as_long_after_each_failure_up_to_a_minute(now: list[float]) -> None:
    server, rests = Server("http://a/v1"), []
    for _ in range(8):
        server.rest()
        server.rest()  # the failure of a concurrent request counts once
        rests.append(server.resting_until - now[0])
        now[0] = server.resting_until
    assert rests == [1, 2, 4, 8, 16, 32, 60, 60]
    server.worked()
    for asked_for, rest in ((7.0, 7.0), (1000.0, 60.0)):
        server.rest(asked_for)
        assert server.resting_until - now[0] == rest
        now[0] = server.resting_until


DOWN, BROKEN = TransientError("down"), MalformedError("broken")


@pytest.mark.parametrize(
    ("errors", "pauses"),
    [
        ([DOWN] * 7, [0.5, 1, 2, 4, 8, 4.5, None]),  # at the end of 20 seconds once more
        ([BROKEN] * 5, [0.5, 1, 2, 1.5, None]),  # of 5 seconds
        ([*[DOWN] * 3, *[BROKEN] * 3], [0.5, 1, 2, 4, 1, None]),  # since the first of these
        ([BROKEN, DOWN, *[BROKEN] * 3], [0.5, 1, 2, 3, None]),  # in a row
        ([TransientError("busy", 7.0), DOWN], [7.0, 1]),
    ],
)
def test_pauses_double_and_end_with_patience(
    errors: list[TransientError], pauses: list[float | None], now: list[float]
) -> None:
    patience, taken = Patience(20.0, 5.0), []
    for error in errors:
        taken.append(patience.pause(error))
        now[0] += taken[-1] or 0.0
    assert taken == pauses


@pytest.mark.usefixtures("pauses")
@pytest.mark.parametrize(("failures", "lines"), [(1, 0), (2, 1), (4, 1)])
def test_waiting_is_said_once_from_the_second_failure_on(failures: int, lines: int) -> None:
    said: list[str] = []
    with fake_server(faults=["500"] * failures) as server:
        ask = partial(Client.complete, prompt=prompt_ids(), max_tokens=1)
        asked([server], ask, on_wait=said.append)
    assert len(said) == lines


@pytest.mark.parametrize("fault", ["429", "500", "truncated", "close"])
def test_a_server_that_fails_is_not_waited_for_while_another_is_free(
    fault: str, pauses: Pauses
) -> None:
    with fake_server(always=fault) as first, fake_server() as second:
        asked(
            [first, second],
            lambda c: c.complete(prompt_ids(), max_tokens=1, replica=0),
            retry_timeout=9,
        )
        assert max(pauses.taken) < 1.0  # what the first asks for
        assert (len(first.asked), len(second.asked)) == (1, 1)


def test_another_server_takes_over_while_one_is_down() -> None:
    async def work(client: Client) -> None:
        for _ in range(8):
            await client.complete(prompt_ids(), max_tokens=1, replica=client.assign_replica())

    with fake_server() as first, fake_server() as second:
        second.stop()
        asked([first, second], work, retry_timeout=20)
        assert len(first.asked) == 8


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:8000/v1", "look like http://host:8000/v1, got 'localhost:8000/v1'"),
        ("ftp://host/v1", "look like http://host:8000/v1"),
        ("http://host/v1?key=1", "look like http://host:8000/v1"),
        ("http://host:eighty/v1", "look like http://host:8000/v1, got 'http://host:eighty/v1'"),
        ("http://[host/v1", "look like http://host:8000/v1"),
        ("http://☃.com/v1", "look like http://host:8000/v1, got 'http://☃.com/v1'"),
        (f"http://user:{SECRET}@host/v1", "must not hold a user name or password"),
        (f"user:{SECRET}@host/v1", "must not hold a user name or password"),
        (f"http://host/v1?api_key={SECRET}", "give a key through the environment"),
    ],
)
def test_bad_addresses_are_refused(url: str, message: str) -> None:
    with pytest.raises(ModelError, match="URL must") as caught:
        Client([url], "m")
    assert message in str(caught.value)
    assert SECRET not in str(caught.value)


# --- The key --------------------------------------------------------------------------------------


def test_the_key_reaches_its_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", f" {SECRET}\n")
    key = Key.of_environment("A_KEY", required=True)
    with fake_server(key=SECRET) as server:
        asked([server], lambda c: c.complete(prompt_ids(), max_tokens=1), key=key)
    assert server.headers[0]["Authorization"] == f"Bearer {SECRET}"
    assert repr(key) == "Key(A_KEY)"
    with pytest.raises(TypeError, match="not stored"):
        pickle.dumps(key)


@pytest.mark.parametrize("fault", [None, "500"])
def test_a_server_that_repeats_the_key_does_not_show_it(fault: str | None) -> None:
    key = Key(SECRET, "A_KEY")
    with (
        fake_server(key=SECRET if fault else "other", echoes_key=True, always=fault) as server,
        pytest.raises(EngineError) as caught,
    ):
        asked(
            [server], lambda c: c.complete(prompt_ids(), max_tokens=1), key=key, retry_timeout=0.1
        )
    assert "A_KEY" in str(caught.value)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        assert SECRET not in repr(error)
        error = error.__cause__


@pytest.mark.parametrize("before", range(150, 200, 7))
def test_half_a_key_is_not_shown_either(before: int) -> None:
    key = Key(SECRET, "A_KEY")
    said = "x" * before
    with (
        fake_server(key="other", echoes_key=True, says=said) as server,
        pytest.raises(Refused) as caught,
    ):
        asked([server], lambda c: c.complete(prompt_ids(), max_tokens=1), key=key)
    assert said in str(caught.value)
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize("value", ["", "  ", "sk-a\nb", "sk-ä"])
def test_keys_that_fit_no_header_are_refused_unseen(value: str) -> None:
    with pytest.raises(ModelError, match="A_KEY must hold printable ASCII") as caught:
        Key(value, "A_KEY")
    assert "sk-" not in str(caught.value)


def test_a_key_that_was_named_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("A_KEY", raising=False)
    assert Key.of_environment("A_KEY", required=False) is None
    with pytest.raises(ModelError, match="--api-key-env names A_KEY, which is not set"):
        Key.of_environment("A_KEY", required=True)
