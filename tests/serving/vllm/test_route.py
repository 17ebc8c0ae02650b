"""The plugin's route: requests answered, passed on and cancelled; policies replaced."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stopadvisor.ground.errors import ModelError
from stopadvisor.policy.frozen import Policy, save_policy
from stopadvisor.serving import responder
from stopadvisor.serving.serve_settings import AuditSettings
from stopadvisor.serving.vllm import route as route_module
from stopadvisor.serving.vllm.adapter import PATH
from stopadvisor.serving.vllm.route import MarkedReplies, PolicyRoute
from tests.engines.fake_server import Story
from tests.engines.test_openai_online import LENGTH, NEVER
from tests.serving.gateways import WATCHED, Answer
from tests.serving.vllm.fake_engine import (
    FACTS,
    QUESTION,
    FakeEngine,
    bound_at,
    policy_of,
    route_at,
)

PASSED: dict[str, Any] = {"id": "of vLLM"}


@dataclass
class Client:
    """Sends one request to a route and reads the reply; may disconnect."""

    route: PolicyRoute
    leaves: Callable[[], bool] | None = None
    """Disconnects once this is true; None: never."""
    sent: list[MutableMapping[str, Any]] = field(default_factory=list)
    passed_on: int = 0
    cleaned_up: int = 0
    """Runs of the task that vLLM's own response leaves for afterwards."""

    async def ask(
        self,
        body: dict[str, Any],
        headers: dict[str, str] | None = None,
        server: Starlette | None = None,
    ) -> Any:
        data = json.dumps(body).encode()
        raw = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
        scope = {"type": "http", "method": "POST", "path": PATH, "headers": raw}
        left: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": data}]

        async def receive() -> MutableMapping[str, Any]:
            if left:
                return left.pop()
            while self.leaves is None or not self.leaves():
                await asyncio.sleep(0.001 if self.leaves else 3600)
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            self.sent.append(message)

        async def clean_up() -> None:
            self.cleaned_up += 1

        async def pass_on() -> Response:
            self.passed_on += 1
            return JSONResponse(PASSED, background=BackgroundTask(clean_up))

        response = server or await self.route.answer(Request(scope, receive), pass_on)
        await response(scope, receive, send)
        return self.reply.json if self.data.startswith(b"{") else None

    @property
    def data(self) -> bytes:
        """The body as far as it came."""
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def reply(self) -> Answer:
        headers = {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}
        return Answer(self.sent[0]["status"], headers, self.data)

    @property
    def header(self) -> str:
        return self.reply.headers["x-stopadvisor"]


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


def test_a_whole_reply() -> None:
    client = client_of(FakeEngine())
    body = asyncio.run(client.ask(asked()))
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


@pytest.mark.parametrize(
    ("changes", "content", "finish"),
    [
        ({}, "Final answer: 5", "stop"),
        ({"on_stop": "answer"}, Story().visible, "stop"),
        (NEVER, Story().visible, "stop"),
        (NEVER | {"max_think": 10, "budgets": [0, 8]}, None, "length"),
    ],
    ids=["stopped", "visible", "never", "cut"],
)
def test_a_streamed_reply_holds_the_same(
    changes: dict[str, Any], content: str | None, finish: str
) -> None:
    client = client_of(FakeEngine(), policy_of(**changes), shows_cached=True)
    asyncio.run(client.ask(asked(stream=True, stream_options={"include_usage": True})))
    whole = client_of(FakeEngine(), policy_of(**changes))
    asyncio.run(whole.ask(asked()))
    (choice,), reply = whole.reply.json["choices"], client.reply
    assert (choice["message"]["content"], choice["finish_reason"]) == (content, finish)
    assert reply.events[-2]["choices"][0]["finish_reason"] == finish
    assert reply.text("content") == (content or "")
    for name in ("reasoning", "reasoning_content"):
        assert reply.text(name) == whole.reply.text("reasoning")
    assert reply.usage["prompt_tokens_details"] == {"cached_tokens": 16}
    assert client.data.endswith(responder.DONE)
    assert client.sent[-1].get("more_body") is False


def test_what_is_not_covered_goes_to_the_original_handler_as_it_came() -> None:
    client = client_of(FakeEngine())
    assert asyncio.run(client.ask(asked(n=2))) == PASSED
    assert client.header == f"passthrough; reason=n; digest={client.route.digest}"
    assert client.passed_on == client.cleaned_up == 1
    assert counted(client, "stopadvisor_requests_total", route="passthrough", reason="n") == 1


@pytest.mark.parametrize("header", ["X-data-parallel-rank", "X-Vllm-Priority"])
def test_a_header_that_vllm_obeys_is_left_to_the_original_handler(header: str) -> None:
    """It refuses a replica that it does not have, and schedules by the priority."""
    client = client_of(FakeEngine())
    assert asyncio.run(client.ask(asked(), {header: "7"})) == PASSED
    assert client.header.startswith("passthrough; reason=field;")


@pytest.mark.parametrize(("error", "status"), [(ValueError, 400), (RuntimeError, 500)])
def test_an_error_of_the_original_handler_is_counted_with_its_reply(
    error: type[Exception], status: int
) -> None:
    """That is how vLLM refuses some requests."""
    client = Client(route_at(FakeEngine()))

    async def chat(request: Request) -> Any:
        return await client.route.answer(request, partial(fail, error("no room")))

    async def fail(error: Exception) -> Response:
        raise error

    async def handle(request: Request, error: Exception) -> Response:
        return JSONResponse({}, 400 if isinstance(error, ValueError) else 500)

    app = Starlette(
        routes=[Route(PATH, chat, methods=["POST"])],
        exception_handlers={ValueError: handle, Exception: handle},
    )
    app.state.stopadvisor = client.route
    app.add_middleware(MarkedReplies, server=app, state=app.state)
    with suppress(RuntimeError):  # the server logs it
        asyncio.run(client.ask(asked(n=2), server=app))
    assert client.reply.status == status
    assert client.header.startswith("passthrough; reason=n; ")
    assert counted(client, "stopadvisor_responses_total", status=str(status)) == 1
    assert counted(client, "stopadvisor_requests_total", route="passthrough", reason="n") == 1
    assert counted(client, "stopadvisor_requests_in_flight") == 0


@pytest.mark.parametrize(("more", "reason"), [(0, "covered"), (-1, "room")])
def test_a_prompt_may_be_as_long_as_the_caps_leave(more: int, reason: str) -> None:
    prompt = len(bound_at(FakeEngine()).model.chat.prompt_ids(QUESTION))
    taken = FACTS.context - bound_at(FakeEngine()).longest_prompt
    client = client_of(FakeEngine(), context=taken + prompt + more)
    passed_on = asyncio.run(client.ask(asked())) == PASSED
    assert f"reason={reason}" in client.header
    assert passed_on == (reason == "room")


@pytest.mark.parametrize(("fields", "route"), [({}, "policy"), ({"n": 2}, "passthrough")])
def test_times_begin_with_the_request(fields: dict[str, int], route: str) -> None:
    client = client_of(FakeEngine())
    began = time.perf_counter()
    asyncio.run(client.ask(asked(**fields)))
    ended = time.perf_counter()
    for name in ("e2e_request_latency", "overhead"):
        seconds = counted(client, f"stopadvisor_{name}_seconds_sum", route=route)
        assert seconds > 0.0
        assert began + seconds <= ended


def test_thinking_and_probes_stand_in_the_clients_trace() -> None:
    engine = FakeEngine()
    context = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}

    async def ask_both() -> None:
        await client_of(engine).ask(asked(stream=True), {**context, "X-Other": "1"})
        await client_of(engine).ask(asked(stream=True))

    asyncio.run(ask_both())
    assert {kind for kind, _ in engine.traced} == {"think", "probe"}
    half = len(engine.traced) // 2
    assert [found for _, found in engine.traced] == [context] * half + [{}] * half


def test_a_shadow_answers_in_full_and_counts_its_stops() -> None:
    client = client_of(FakeEngine(), shadow=True)
    body = asyncio.run(client.ask(asked()))
    assert client.header.startswith("shadow; ")
    assert body["choices"][0]["message"]["content"] == Story().visible
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": LENGTH}
    assert body["usage"]["stopadvisor"]["budget"] is None
    assert counted(client, "stopadvisor_stops_total", route="shadow", budget="4") == 1


def test_a_shadow_thinks_as_far_as_vllm_would() -> None:
    """The policy's caps would cut the thinking at 10 tokens, and the answer at 2."""
    probe = policy_of().content["probe"] | {"answer_cap": 2}
    policy = policy_of(max_think=10, budgets=[0, 4, 8], probe=probe)
    body = asyncio.run(client_of(FakeEngine(), policy, shadow=True).ask(asked()))
    assert body["choices"][0]["message"]["content"] == Story().visible
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": LENGTH}
    for most, finish in ((14, "length"), (LENGTH + 100, "stop")):
        client = client_of(FakeEngine(), policy, shadow=True)
        found = asyncio.run(client.ask(asked(max_tokens=most)))
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
    asyncio.run(asyncio.wait_for(client.ask(asked(stream=stream)), 60))
    assert not engine.running
    assert any(kind in name for name in engine.aborted)
    assert counted(client, "stopadvisor_requests_in_flight") == 0
    assert counted(client, "stopadvisor_tokens_total", kind="think") > 0 or kind == "think"


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_fails_at_once_is_for_the_servers_own_handlers(stream: bool) -> None:
    client = client_of(FakeEngine(fails=("think",)))
    with pytest.raises(RuntimeError, match="does not like it"):
        asyncio.run(client.ask(asked(stream=stream)))
    assert client.sent == []


def test_an_engine_that_fails_later_ends_the_stream_with_an_error() -> None:
    """Here the visible answer after a stop fails."""
    client = client_of(FakeEngine(fails=("answer",)), policy_of(on_stop="answer"))
    asyncio.run(client.ask(asked(stream=True)))
    assert client.reply.events[-1]["error"]["type"] == "server_error"
    assert client.data.endswith(responder.DONE)


def test_a_quiet_stream_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responder, "KEEP_ALIVE_SECONDS", 0.01)
    client = client_of(FakeEngine(pace=0.03), policy_of(**NEVER, budgets=[4]))
    asyncio.run(client.ask(asked(stream=True)))
    assert client.data.count(responder.KEEP_ALIVE) >= 5
    first, *_, last = client.reply.events
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "usage" not in last, "nobody asked for it"


# --- Audits, several policies, and reloads --------------------------------------------------------


def test_a_stopped_trace_thinks_on_where_it_was(tmp_path: Path) -> None:
    engine = FakeEngine()
    policy, audit = policy_of(certificate=WATCHED), AuditSettings(1.0, tmp_path)
    route = route_at(engine, policy, audit=audit)

    async def go() -> None:
        await Client(route).ask({"model": "tiny-reasoner", "messages": QUESTION})
        await route.auditors.drain(5)

    asyncio.run(go())
    (_, ids, parameters, priority) = next(entry for entry in engine.asked if entry[0] == "audit")
    decoded = {name.split("-")[2]: tokens for name, tokens in engine.decoded.items()}
    prompt = engine.asked[0][1]
    assert ids[: len(prompt)] == prompt
    assert len(ids) == len(prompt) + decoded["think"]  # nothing is drawn twice
    assert priority > 0
    assert parameters.max_tokens < engine.asked[0][2].max_tokens
    (auditor,) = route.auditors._by_digest.values()
    counts = auditor.log.monitor.counts
    assert counts["audit_tokens"] == decoded["audit"]
    # 3+4: forced to 5 at the stop, 7 at the end of thinking.
    assert (counts["resolved"], counts["differing"]) == (1, 1)


def test_an_audit_that_the_cap_cuts_says_so(tmp_path: Path) -> None:
    policy, audit = (
        policy_of(certificate=WATCHED, max_think=10, budgets=[0, 4, 8]),
        AuditSettings(1.0, tmp_path),
    )
    route = route_at(FakeEngine(), policy, audit=audit)

    async def go() -> None:
        await Client(route).ask({"model": "tiny-reasoner", "messages": QUESTION})
        await route.auditors.drain(5)

    asyncio.run(go())
    (path,) = tmp_path.iterdir()
    assert '"differs":true' in path.read_text().splitlines()[-1]
    assert '"cut":true' in path.read_text().splitlines()[-1]


BODY = {"model": "tiny-reasoner", "messages": QUESTION}
STOPS, GOES_ON = policy_of(certificate=WATCHED), policy_of(certificate=WATCHED, **NEVER)


async def reply(route: PolicyRoute, **headers: str) -> tuple[str, dict[str, Any]]:
    """Return the header and the body of a reply."""
    client = Client(route)
    body = await client.ask(BODY, {n.replace("_", "-"): v for n, v in headers.items()})
    return client.header, body


async def served(path: Path, engine: FakeEngine, *policies: Policy, **options: Any) -> PolicyRoute:
    """Return a route that serves policies and reloads them from `path`."""
    route = route_at(engine, policies[0], path=path, **options)
    await route.use([(Path(f"{n}.joblib"), policy) for n, policy in enumerate(policies)])
    return route


@pytest.fixture(autouse=True)
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Models given to the self-test, which the fake engine would not pass."""
    models: list[Any] = []

    async def try_engine(model: Any, context: int, max_logprobs: int) -> None:
        models.append(model)

    monkeypatch.setattr(route_module, "try_engine", try_engine)
    return models


def digest(policy: Policy) -> str:
    return f"digest={policy.digest[:8]}"


def test_the_header_chooses_among_policies_of_one_model(tmp_path: Path) -> None:
    numeric, choice = policy_of(task="numeric"), policy_of(task="choice")

    async def go() -> None:
        both = await served(tmp_path, FakeEngine(), numeric, choice)
        for policy in (numeric, choice):
            header, body = await reply(both, X_StopAdvisor_Task=policy.terms.task)
            assert header == f"policy; reason=covered; {digest(policy)}"
            assert body["usage"]["stopadvisor"]["budget"] == 4
        for headers in ({}, {"X_StopAdvisor_Task": "math"}):
            assert await reply(both, **headers) == ("passthrough; reason=task; digest=none", PASSED)
        alone = await served(tmp_path, FakeEngine(), numeric)
        assert (await reply(alone))[0] == f"policy; reason=covered; {digest(numeric)}"

    asyncio.run(go())


@pytest.mark.parametrize("fault", ["no policy", "another model", "the self-test"])
def test_what_is_refused_leaves_the_policies_in_use(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "policy.joblib"
    save_policy(GOES_ON, path)
    if fault == "no policy":
        path.write_bytes(b"something else")
    elif fault == "another model":
        other = {**STOPS.content["model"], "revision": "sha256:" + "0" * 64}
        save_policy(policy_of(model=other), path)

    async def fails(*_: Any) -> None:
        raise ModelError("this vLLM does not pass")

    async def go() -> None:
        found = await served(path, FakeEngine(), STOPS)
        if fault == "the self-test":
            monkeypatch.setattr(route_module, "try_engine", fails)
        with caplog.at_level(logging.ERROR, "vllm.stopadvisor"):
            await found.reload()
        assert (await reply(found))[0].endswith(digest(STOPS))

    asyncio.run(go())
    (record,) = (one for one in caplog.records if one.levelno == logging.ERROR)
    assert record.getMessage().startswith("reload refused, the policies in use stay: ")


def test_a_request_ends_under_the_policy_it_began_with(tmp_path: Path, tried: list[Any]) -> None:
    path = tmp_path / "policy.joblib"
    save_policy(GOES_ON, path)
    engine = FakeEngine(pace=0.005)

    async def go() -> None:
        found = await served(path, engine, STOPS)
        asking = asyncio.create_task(reply(found))
        while not engine.running:
            await asyncio.sleep(0.001)
        await found.reload()
        header, body = await asking
        assert header.endswith(digest(STOPS))
        assert body["usage"]["stopadvisor"]["budget"] == 4
        header, body = await reply(found)
        assert header == f"policy; reason=covered; {digest(GOES_ON)}"
        assert body["usage"]["stopadvisor"]["budget"] is None

    asyncio.run(go())
    assert len(tried) == 2


def test_a_policy_that_comes_back_goes_on_with_its_audits(tmp_path: Path) -> None:
    path = tmp_path / "policy.joblib"
    audit = AuditSettings(1.0, tmp_path / "audits")

    async def go() -> None:
        found = await served(path, FakeEngine(), STOPS, audit=audit)
        for policy in (GOES_ON, STOPS):
            await reply(found)
            save_policy(policy, path)
            await found.reload()
        await reply(found)
        auditors = found.auditors._by_digest
        requests = {name: a.log.monitor.counts["requests"] for name, a in auditors.items()}
        assert requests == {STOPS.digest: 2, GOES_ON.digest: 1}
        for auditor in auditors.values():
            await auditor.drain(5)

    asyncio.run(go())
    assert len(list((tmp_path / "audits").iterdir())) == 2
