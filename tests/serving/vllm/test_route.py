"""Chat requests at the plugin's route: answered, passed on, given up; over ASGI, no network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from stopadvisor.policy.frozen import Policy
from stopadvisor.serving import responder
from stopadvisor.serving.vllm.route import PolicyRoute
from tests.engines.fake_server import Story
from tests.engines.test_live import LENGTH, NEVER
from tests.serving.vllm.fake_engine import QUESTION, FakeEngine, policy_of, route_at

PASSED: dict[str, Any] = {"id": "of vLLM"}


@dataclass
class Client:
    """Sends one request to a route, and reads the reply; it may leave."""

    route: PolicyRoute
    leaves: Callable[[], bool] | None = None
    """It leaves once this is so; None: it stays."""
    sent: list[MutableMapping[str, Any]] = field(default_factory=list)
    passed_on: int = 0

    async def ask(self, body: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
        data = json.dumps(body).encode()
        raw = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": raw}
        left: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": data}]

        async def receive() -> MutableMapping[str, Any]:
            if left:
                return left.pop()
            while self.leaves is None or not self.leaves():
                await asyncio.sleep(0.001 if self.leaves else 3600)
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            self.sent.append(message)

        async def pass_on() -> Response:
            self.passed_on += 1
            return JSONResponse(PASSED, background=BackgroundTask(lambda: None))

        response = await self.route.answer(Request(scope, receive), pass_on)
        await response(scope, receive, send)
        return self.body

    @property
    def header(self) -> str:
        (value,) = (v for k, v in self.sent[0]["headers"] if k == b"x-stopadvisor")
        return str(value.decode())

    @property
    def data(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def body(self) -> Any:
        return json.loads(self.data) if self.data.startswith(b"{") else None

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = [line for line in self.data.split(b"\n\n") if line.startswith(b"data: {")]
        return [json.loads(line.removeprefix(b"data: ")) for line in lines]


def client_of(
    engine: FakeEngine,
    policy: Policy | None = None,
    *,
    leaves: Callable[[], bool] | None = None,
    context: int = 1024,
    **options: Any,
) -> Client:
    return Client(route_at(engine, policy, context=context, **options), leaves)


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny-reasoner", "messages": QUESTION} | fields


def counted(client: Client, name: str, **labels: str) -> float:
    value = client.route.metrics._registry.get_sample_value(name, labels or None)
    return 0.0 if value is None else value


def run(action: Callable[[], Awaitable[Any]]) -> Any:
    async def do() -> Any:
        return await action()

    return asyncio.run(do())


def test_a_whole_reply() -> None:
    client = client_of(FakeEngine())
    body = run(lambda: client.ask(asked()))
    assert client.header == f"policy; reason=covered; digest={client.route.digest}"
    (choice,) = body["choices"]
    assert choice["message"]["content"] == "Final answer: 5"
    assert body["usage"]["stopadvisor"]["budget"] == 4
    assert "prompt_tokens_details" not in body["usage"]
    assert client.passed_on == 0
    assert counted(client, "stopadvisor_requests_total", route="policy", reason="covered") == 1
    assert counted(client, "stopadvisor_stops_total", route="policy", budget="4") == 1
    assert counted(client, "stopadvisor_probe_seconds_count") == 2
    assert counted(client, "stopadvisor_requests_in_flight") == 0


def test_a_streamed_reply_holds_the_same() -> None:
    client = client_of(FakeEngine(), shows_cached=True)
    options = {"include_usage": True}
    run(lambda: client.ask(asked(stream=True, stream_options=options)))
    whole = client_of(FakeEngine())
    body = run(lambda: whole.ask(asked()))
    assert client.data.endswith(responder.DONE)
    deltas = [choice["delta"] for event in client.events for choice in event["choices"]]
    text = {
        name: "".join(delta.get(name) or "" for delta in deltas)
        for name in ("reasoning", "reasoning_content", "content")
    }
    message = body["choices"][0]["message"]
    assert text == {name: message[name] for name in text}
    assert client.events[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}
    assert client.sent[-1].get("more_body") is False


def test_what_is_not_covered_goes_to_the_original_handler_as_it_came() -> None:
    client = client_of(FakeEngine())
    assert run(lambda: client.ask(asked(n=2))) == PASSED
    assert client.header == f"passthrough; reason=n; digest={client.route.digest}"
    assert client.passed_on == 1
    assert counted(client, "stopadvisor_requests_total", route="passthrough", reason="n") == 1


def test_a_prompt_that_leaves_less_than_the_caps_is_passed_on() -> None:
    client = client_of(FakeEngine(), context=470)
    assert run(lambda: client.ask(asked())) == PASSED
    assert "reason=room" in client.header


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_thinking_and_probes_stand_in_the_clients_trace(stream: bool) -> None:
    engine = FakeEngine()
    context = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}

    async def ask_both() -> None:
        await client_of(engine).ask(asked(stream=stream), {**context, "X-Other": "1"})
        await client_of(engine).ask(asked(stream=stream))

    asyncio.run(ask_both())
    assert {kind for kind, _ in engine.traced} == {"think", "probe"}
    half = len(engine.traced) // 2
    assert [found for _, found in engine.traced] == [context] * half + [{}] * half


def test_a_shadow_answers_in_full_and_counts_its_stops() -> None:
    client = client_of(FakeEngine(), shadow=True)
    body = run(lambda: client.ask(asked()))
    assert client.header.startswith("shadow; ")
    assert body["choices"][0]["message"]["content"] == Story().visible
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": LENGTH}
    assert body["usage"]["stopadvisor"]["budget"] is None
    assert counted(client, "stopadvisor_stops_total", route="shadow", budget="4") == 1


def test_a_shadow_thinks_as_far_as_vllm_would() -> None:
    """The policy's caps would cut the thinking at 10 tokens, and the answer at 2."""
    probe = policy_of().content["probe"] | {"answer_cap": 2}
    policy = policy_of(max_think=10, budgets=[0, 4, 8], probe=probe)
    body = run(lambda: client_of(FakeEngine(), policy, shadow=True).ask(asked()))
    assert body["choices"][0]["message"]["content"] == Story().visible
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": LENGTH}
    for most, finish in ((14, "length"), (LENGTH + 100, "stop")):
        client = client_of(FakeEngine(), policy, shadow=True)
        found = run(partial(client.ask, asked(max_tokens=most)))
        assert found["choices"][0]["finish_reason"] == finish
        probed = found["usage"]["stopadvisor"]["probe_tokens"]
        assert found["usage"]["completion_tokens"] - probed <= most


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["think", "probe", "answer"])
def test_a_client_that_leaves_ends_thinking_and_probe(kind: str, stream: bool) -> None:
    engine = FakeEngine(hangs=(kind,), pace=0.001)
    policy = policy_of(on_stop="answer" if kind == "answer" else "probe")

    def hangs() -> bool:
        return kind in engine.hanging and (bool(engine.outputs) or kind == "think")

    client = client_of(engine, policy, leaves=hangs)
    run(lambda: asyncio.wait_for(client.ask(asked(stream=stream)), 60))
    assert not engine.running
    assert any(kind in name for name in engine.aborted)
    assert counted(client, "stopadvisor_requests_in_flight") == 0
    assert counted(client, "stopadvisor_tokens_total", kind="think") > 0 or kind == "think"


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_fails_at_once_is_for_the_servers_own_handlers(stream: bool) -> None:
    client = client_of(FakeEngine(fails=("think",)))
    with pytest.raises(RuntimeError, match="does not like it"):
        run(lambda: client.ask(asked(stream=stream)))
    assert client.sent == []


def test_an_engine_that_fails_later_ends_the_stream_with_an_error() -> None:
    """Here the visible answer behind a stop fails."""
    client = client_of(FakeEngine(fails=("answer",)), policy_of(on_stop="answer"))
    run(lambda: client.ask(asked(stream=True)))
    assert client.events[-1]["error"]["type"] == "server_error"
    assert client.data.endswith(responder.DONE)


def test_a_quiet_stream_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responder, "KEEP_ALIVE_SECONDS", 0.01)
    client = client_of(FakeEngine(pace=0.03), policy_of(**NEVER, budgets=[4]))
    run(lambda: client.ask(asked(stream=True)))
    assert client.data.count(responder.KEEP_ALIVE) >= 5
    assert client.events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
