"""Load on a server over real HTTP: what is timed and counted, and what becomes of failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any, TypeVar

import pytest

from stopadvisor.errors import EngineError, ModelError
from stopadvisor.serving.load import LoadServer, Timed, closed_loop, open_loop
from tests.engines.fake_server import FakeServer
from tests.serving.virtual_server import run_virtually

_Result = TypeVar("_Result")
BODY = {"messages": [{"role": "user", "content": "3+4"}]}
METRICS = """# TYPE vllm:kv_cache_usage_perc gauge
vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="400"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
"""


@dataclass
class MeteredServer(FakeServer):
    """Has metrics too."""

    metrics: str | None = METRICS

    def get(self, to: BaseHTTPRequestHandler) -> None:
        if to.path != "/metrics" or self.metrics is None:
            super().get(to)
            return
        data = self.metrics.encode()
        to.send_response(200)
        to.send_header("Content-Length", str(len(data)))
        to.end_headers()
        to.wfile.write(data)


@pytest.fixture
def fake() -> Iterator[MeteredServer]:
    server = MeteredServer(chat="reasoning_content")
    server.start()
    yield server
    server.stop()


def at(fake: FakeServer, work: Callable[[LoadServer], Awaitable[_Result]], **more: Any) -> _Result:
    """Do something with a server under load."""

    async def done() -> _Result:
        async with LoadServer(fake.url, fake.model, **more) as server:
            return await work(server)

    return asyncio.run(done())


def test_an_answer_is_timed_and_counted(fake: MeteredServer) -> None:
    found = at(fake, lambda server: server.ask(BODY, {"X-StopAdvisor-Task": "none"}))
    assert found.worked
    assert 0 < found.ttft <= found.e2e
    assert 0 <= found.tpot <= found.e2e
    assert found.prompt > 0
    assert found.decoded > 10
    assert (found.cached, found.header, found.route) == (None, "", "")
    (asked,), (headers,) = fake.asked, fake.headers
    assert asked["stream_options"] == {"include_usage": True}
    assert (asked["model"], asked["stream"]) == ("tiny-reasoner", True)
    assert headers["X-StopAdvisor-Task"] == "none"


@pytest.mark.parametrize("fault", ["500", "429", "close", "cut-short"])
def test_a_failure_is_an_answer_too(fault: str, fake: MeteredServer) -> None:
    fake.faults = [fault]
    found = at(fake, lambda server: server.ask(BODY, {}))
    assert found == Timed()
    assert not found.worked


def test_a_refusal_is_an_error_without_the_key(
    fake: MeteredServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "wrong-secret-key")
    fake.key, fake.echoes_key = "right", True
    with pytest.raises(EngineError, match="refuses a request: 401") as error:
        at(fake, lambda server: server.ask(BODY, {}), key_name="SOME_KEY")
    assert "wrong-secret-key" not in str(error.value)
    assert "[SOME_KEY]" in str(error.value)


def test_the_model_and_its_context_are_looked_up(fake: MeteredServer) -> None:
    assert at(fake, lambda server: server.context()) == 1024
    fake.context = None
    assert at(fake, lambda server: server.context()) is None
    fake.model = "another"

    async def look(server: LoadServer) -> int | None:
        server.model = "tiny-reasoner"
        return await server.context()

    with pytest.raises(ModelError, match="serves another, --model is tiny-reasoner"):
        at(fake, look)
    fake.stop()
    with pytest.raises(ModelError, match=r"no list of models"):
        at(fake, look)


def test_the_kv_cache_is_watched(fake: MeteredServer) -> None:
    async def watch(server: LoadServer) -> float | None:
        async with server.watched() as use:
            while not use.block_seconds:
                await asyncio.sleep(0.01)
        return use.block_seconds

    found = at(fake, watch, metrics=True)
    assert found is not None
    assert found > 0
    fake.metrics = "process_cpu_seconds_total 3\n"
    with pytest.raises(ModelError, match="does not name vllm:kv_cache_usage_perc"):
        at(fake, watch, metrics=True)

    async def unwatched(server: LoadServer) -> float | None:
        async with server.watched() as use:
            return use.block_seconds

    assert at(fake, unwatched) is None


# --- Loops, in time that is made up ---------------------------------------------------------------


def test_a_closed_loop_keeps_so_many_in_flight() -> None:
    most, now = 0, 0

    async def ask(number: int) -> Timed:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(1 + number % 2)
        now -= 1
        return Timed(e2e=1.0)

    answers, seconds = run_virtually(closed_loop(ask, 12, 4))
    assert (len(answers), most) == (12, 4)
    assert seconds == pytest.approx(12 * 1.5 / 4, abs=1.0)


def test_an_open_loop_waits_for_nobody() -> None:
    arrived: list[float] = []

    async def ask(number: int) -> Timed:
        arrived.append(asyncio.get_running_loop().time())
        await asyncio.sleep(100 - number)
        return Timed(e2e=float(number))

    times = [0.5, 1.0, 4.0]
    answers = run_virtually(open_loop(ask, times, lambda number, answer: False))
    assert arrived == pytest.approx(times)
    assert [answer.e2e for answer in answers if answer is not None] == [0, 1, 2]


def test_a_hopeless_block_is_given_up() -> None:
    cancelled: list[int] = []

    async def ask(number: int) -> Timed:
        try:
            await asyncio.sleep(1.0 if number == 0 else 50.0)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        return Timed(e2e=1.0)

    async def block() -> tuple[list[Timed | None], float]:
        found = await open_loop(ask, [0.0, 0.1, 5.0], lambda number, answer: True)
        return found, asyncio.get_running_loop().time()

    answers, ended = run_virtually(block())
    assert [answer is not None for answer in answers] == [True, False, False]
    assert cancelled == [1], "the third had not arrived"
    assert ended == pytest.approx(1.0)


def test_a_refusal_ends_both_loops() -> None:
    async def refuse(number: int) -> Timed:
        raise EngineError("no")

    with pytest.raises(EngineError, match="no"):
        run_virtually(closed_loop(refuse, 4, 2))
    with pytest.raises(EngineError, match="no"):
        run_virtually(open_loop(refuse, [0.0, 0.1], lambda number, answer: False))
