"""The gateway: what is covered is stopped, and the rest goes through as it came."""

from __future__ import annotations

import gzip
import http.client
import io
import itertools
import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry as Registry

from stopadvisor.engines.live import LiveRequest
from stopadvisor.engines.openai.served_model import ServedModel
from stopadvisor.ground.errors import EngineError, ModelError, PolicyError
from stopadvisor.policy.frozen import load_policy
from stopadvisor.probes.asking import ProbePlan
from stopadvisor.serving.gateway import intake
from stopadvisor.serving.gateway.forward import Forwarder
from stopadvisor.serving.gateway.intake import Incoming
from stopadvisor.serving.gateway.server import serve
from stopadvisor.serving.metrics import Metrics
from stopadvisor.serving.serve_settings import GatewaySettings
from tests.engines.fake_server import TINY, FakeServer, Story, fake_server, words
from tests.engines.test_openai_online import THINKING
from tests.integration.server import free_port
from tests.serving.gateways import (
    Answer,
    OddServer,
    RunningGateway,
    Seen,
    chat_body,
    http_reply,
    odd_server,
    running,
    save_changed,
    says,
    until,
)

USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
SECRET = "sk-canary-7f3a9c51e2"


@pytest.fixture(scope="module")
def server() -> Iterator[OddServer]:
    with odd_server() as server:
        yield server


@pytest.fixture(scope="module")
def gateway(server: OddServer, policies: Path) -> Iterator[RunningGateway]:
    with running(policies / "stops.json", server) as gateway:
        yield gateway


def direct(server: FakeServer, gateway: RunningGateway, body: Any, path: str) -> Answer:
    return gateway.ask(body, path, port=server.port)


# --- Under the policy -----------------------------------------------------------------------------


def test_a_covered_request_is_stopped(gateway: RunningGateway) -> None:
    whole = gateway.ask(chat_body())
    assert (whole.status, whole.way) == (200, "policy; reason=covered")
    (choice,) = whole.json["choices"]
    assert choice["message"]["reasoning"] == words().decode(THINKING[:4])
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Final answer: 5", "stop")
    usage = whole.json["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 4
    assert (usage["stopadvisor"]["budget"], usage["stopadvisor"]["probes"]) == (4, 2)

    streamed = gateway.ask(chat_body(stream=True, **USAGE))
    assert (streamed.status, streamed.way) == (200, "policy; reason=covered")
    assert streamed.text("reasoning") == streamed.text("reasoning_content")
    for name in ("reasoning", "content"):
        assert streamed.text(name) == choice["message"][name]
    *_, end, counts = streamed.events
    assert end["choices"][0]["finish_reason"] == "stop"
    assert counts["usage"] == usage
    assert len({event["id"] for event in streamed.events}) == 1
    deltas = [choice["delta"] for event in streamed.events for choice in event["choices"]]
    assert [delta for delta in deltas if "role" in delta] == [
        {"role": "assistant", "content": ""}
    ] == deltas[:1]  # fmt: skip
    assert "prompt_tokens_details" not in usage
    assert [upstream.failures for upstream in gateway.gateway.pool.all] == [0]

    record = gateway.record(2)
    assert (record["route"], record["reason"], record["budget"]) == ("policy", "covered", 4)
    assert record["gen_ai.usage.reasoning.output_tokens"] == 4
    assert 0 < record["ttft_seconds"] <= record["e2e_seconds"] < 60
    assert 0 < record["own_seconds"] <= record["e2e_seconds"]


def test_a_shadow_counts_and_never_stops(server: OddServer, policies: Path) -> None:
    with running(policies / "stops.json", server, shadow=True) as gateway:
        answer = gateway.ask(chat_body())
        streamed = gateway.ask(chat_body(stream=True))
        exported = gateway.get("/metrics").body.decode()
        assert gateway.record(2)["budget"] == 4
    assert (answer.way, streamed.way) == ("shadow; reason=covered",) * 2
    assert answer.json["choices"][0]["message"]["content"] == Story().visible
    assert streamed.text("reasoning") == Story().thinking
    assert answer.json["usage"]["stopadvisor"]["budget"] is None
    assert 'stopadvisor_stops_total{budget="4",route="shadow"} 2.0' in exported


def test_a_full_budget_costs_nothing(server: OddServer, policies: Path) -> None:
    with running(policies / "full.json", server) as gateway:
        answer = gateway.ask(chat_body())
        assert answer.way == "policy; reason=full-budget"
        expected = direct(server, gateway, chat_body(), "/v1/chat/completions")
    assert answer.body == expected.body


def test_a_probe_that_fails_means_think_on(server: OddServer, policies: Path) -> None:
    with running(policies / "stops.json", server, timeouts={"probe": 0.1}) as gateway:
        server.holds = "probe"
        try:
            answer = gateway.ask(chat_body())
        finally:
            server.holds = ""
        assert answer.way == "policy; reason=covered"
        assert answer.json["choices"][0]["message"]["content"] == Story().visible
        assert gateway.record()["failed_probes"] == 1


def test_a_requests_seed_decides_what_is_drawn(
    server: OddServer, policies: Path, tmp_path: Path
) -> None:
    sampling = {"greedy": False, "temperature": 0.6, "seed": 5}
    save_changed(policies / "stops.json", tmp_path / "drawn.json", sampling=sampling)
    with running(tmp_path / "drawn.json", server) as gateway:

        def seeds(**fields: Any) -> list[int]:
            server.asked.clear()
            assert gateway.ask(chat_body(**fields)).way == "policy; reason=covered"
            return [body["seed"] for body in server.asked if "seed" in body]

        assert len(seeds(seed=7)) > 1
        assert seeds(seed=7) == seeds(seed=7) != seeds(seed=8)
        assert seeds() != seeds()


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_of_ours_costs_no_request(
    gateway: RunningGateway, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise KeyError("canary")

    number = len(gateway.records)
    monkeypatch.setattr(LiveRequest, "answer", fail)
    answer = gateway.ask(chat_body(stream=stream))
    assert (answer.status, answer.way) == (200, "passthrough; reason=failed")
    assert gateway.record(number + 1)["error"] == "KeyError"
    assert "canary" not in gateway.logged.getvalue()


def test_a_fault_where_nothing_else_can_answer_ends_one_request_alone(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise KeyError("canary")

    number = len(gateway.records)
    with monkeypatch.context() as patch:
        patch.setattr(Forwarder, "forward", fail)
        answer = gateway.ask(chat_body(n=2))
    assert answer.status == 500
    assert answer.json["error"] == {
        "message": "internal error",
        "type": "server_error",
        "code": None,
    }
    assert gateway.record(number + 1)["error"] == "KeyError"
    assert "canary" not in gateway.logged.getvalue()
    assert gateway.ask(chat_body(n=2)).status == 200


def test_a_folder_has_a_policy_for_each_served_model(
    server: OddServer, policies: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other-reasoner"
    shutil.copytree(TINY, other)
    entries = [
        {"id": "tiny-reasoner", "root": str(TINY), "max_model_len": 1024},
        {"id": "other-reasoner", "root": str(other), "max_model_len": 1024},
    ]
    folder = tmp_path / "policies"
    folder.mkdir()
    shutil.copy(policies / "stops.json", folder)
    model = load_policy(policies / "never.json").content["model"] | {"name": "other-reasoner"}
    save_changed(policies / "never.json", folder / "other.json", model=model)

    def models(to: BaseHTTPRequestHandler, body: bytes) -> None:
        says(http_reply(json.dumps({"data": entries}).encode()))(to, body)

    server.odd["/v1/models"] = models
    try:
        with running(folder, server) as gateway:
            one = gateway.ask(chat_body())
            two = gateway.ask(chat_body(model="other-reasoner"))
            three = gateway.ask(chat_body(model="third"))
            # Restarted with less context, it is no longer what the policies are for.
            entries[1]["max_model_len"] = 700
            until(lambda: gateway.get("/readyz").status == 503)
            entries[1]["max_model_len"] = 1024
            until(lambda: gateway.get("/readyz").status == 200)
    finally:
        del server.odd["/v1/models"]
    assert one.json["usage"]["stopadvisor"]["budget"] == 4
    assert two.way == "policy; reason=covered"
    assert two.json["choices"][0]["message"]["content"] == Story().visible
    assert one.headers["x-stopadvisor"] != two.headers["x-stopadvisor"]
    assert three.way == "passthrough; reason=model"


# --- Past it --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"n": 2}, "n"),
        ({"messages": [{"role": "user", "content": "3+4 " * 400}]}, "room"),
        ({"stream": True, "logprobs": True}, "logprobs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_covered_goes_through_as_it_came(
    server: OddServer, gateway: RunningGateway, fields: dict[str, Any], reason: str
) -> None:
    body = chat_body(**fields)
    server.asked.clear()
    answer = gateway.ask(body)
    assert answer.way == f"passthrough; reason={reason}"
    assert [upstream.failures for upstream in gateway.gateway.pool.all] == [0]
    assert server.asked == [body]
    assert answer.body == direct(server, gateway, body, "/v1/chat/completions").body


@pytest.mark.parametrize(
    ("headers", "way"),
    [
        ({"Content_Type": "Application/JSON; charset=utf-8"}, "policy; reason=covered"),
        ({"Content_Type": "text/plain"}, "passthrough; reason=body"),
        ({"Content_Type": ""}, "passthrough; reason=body"),
        ({"X_Data_Parallel_Rank": "7"}, "passthrough; reason=field"),
        ({"X_Vllm_Priority": "7"}, "passthrough; reason=field"),
    ],
    ids=["json", "text", "none", "rank", "priority"],
)
def test_headers_that_vllm_refuses_or_obeys_are_left_to_it(
    server: OddServer, gateway: RunningGateway, headers: dict[str, Any], way: str
) -> None:
    server.asked.clear()
    assert gateway.ask(chat_body(), **headers).way == way
    assert (server.asked == [chat_body()]) == way.startswith("passthrough")


def test_a_stream_is_what_the_body_asks_for(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only streams have to begin soon."""
    asked, own = list[bool](), Forwarder.forward

    async def forward(forwarder: Forwarder, request: Incoming, send: Any) -> Any:
        asked.append(request.streams)
        return await own(forwarder, request, send)

    monkeypatch.setattr(Forwarder, "forward", forward)
    for stream in (True, False, None, 1, "true"):
        gateway.ask(chat_body(n=2, stream=stream))
    gateway.ask({"stream": True, "model": "tiny-reasoner", "prompt": [1]}, "/v1/completions")
    gateway.get("/v1/models")
    assert asked == [True, False, False, False, False, True, False]


def test_a_requests_own_time_is_without_the_queue(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks, number = itertools.count(0.0, 100.0), len(gateway.records)
    monkeypatch.setattr(intake, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    gateway.ask(chat_body())
    record = gateway.record(number + 1)
    assert record["queue_seconds"] == 100.0
    assert 0 < record["own_seconds"] + 100.0 <= record["e2e_seconds"]


def test_bytes_are_not_touched(server: OddServer, gateway: RunningGateway) -> None:
    """Compressed, binary, a refusal, a redirection; with the query, and no header of ours."""
    seen: list[Seen] = []
    packed = gzip.compress(bytes(range(256)) * 64)
    headers = ("Content-Type: application/x-odd", "Content-Encoding: gzip", "Location: /elsewhere")
    server.odd["/v1/odd"] = says(http_reply(packed, *headers, status="418 Odd"), seen)
    sent = b"\x00\xffnot JSON"
    got = gateway.ask(sent, "/v1/odd?a=%2Fb&c", X_Extra="yes", Connection="X-Extra2, close")
    assert (got.status, got.body, got.way) == (418, packed, "passthrough; reason=body")
    assert (got.headers["content-encoding"], got.headers["location"]) == ("gzip", "/elsewhere")
    assert not {"server", "date"} & set(got.headers), "the upstream sent none"
    (asked,) = seen
    assert (asked.path, asked.body, asked.headers["x-extra"]) == ("/v1/odd?a=%2Fb&c", sent, "yes")
    assert not {"user-agent", "cookie", "accept"} & set(asked.headers), "nothing is added"
    assert gateway.ask(path="/v1/models", method="GET").json["data"][0]["id"] == "tiny-reasoner"
    assert gateway.ask(path="/other", method="GET").status == 404
    bare = gateway.ask(path="/v1", method="GET", Host="elsewhere.example")
    assert (bare.status, bare.headers.get("location")) == (404, None)


@pytest.mark.parametrize(
    ("more", "way"), [(0, "policy; reason=covered"), (-1, "passthrough; reason=room")]
)
def test_a_prompt_leaves_room_for_all_thinking(
    gateway: RunningGateway, more: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def room(model: ServedModel, prompt_ids: Any, plan: ProbePlan) -> int:
        return plan.max_think + more

    monkeypatch.setattr(ServedModel, "thinking_room", room)
    assert gateway.ask(chat_body()).way == way


def test_thinking_and_probes_stand_in_the_clients_trace(
    server: OddServer, gateway: RunningGateway
) -> None:
    context = {
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "tracestate": "a=1",
    }

    def traced(headers: dict[str, Any]) -> list[dict[str, str]]:
        server.headers.clear()
        assert gateway.ask(chat_body(stream=True), **headers).way.startswith("policy")
        return [{name: h[name] for name in context if name in h} for h in server.named]

    with_context = traced(context)
    assert len(with_context) > 2  # thinking, probes
    assert with_context == [context] * len(with_context)
    assert not any(traced({}))


def test_the_header_chooses_among_policies_of_one_model(
    server: OddServer, policies: Path, tmp_path: Path
) -> None:
    shutil.copy(policies / "stops.json", tmp_path)  # of task "numeric"
    save_changed(policies / "never.json", tmp_path / "choice.json", task="choice")
    with running(tmp_path, server) as gateway:
        budgets = {}
        for task in ("numeric", "choice"):
            answer = gateway.ask(chat_body(), X_StopAdvisor_Task=task)
            assert answer.way == "policy; reason=covered"
            budgets[task] = answer.json["usage"]["stopadvisor"]["budget"]
        ways = [gateway.ask(chat_body()).way, gateway.ask(chat_body(), X_StopAdvisor_Task="x").way]
    assert budgets == {"numeric": 4, "choice": None}
    assert ways == ["passthrough; reason=task"] * 2


# --- Keys and logs --------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True], ids=["forwarded", "of-the-gateway"])
def test_keys_reach_the_upstream_and_no_log(
    policies: Path, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", SECRET)
    options = {"api_key_env": "UPSTREAM_KEY"} if own else {}
    canary = "canary-text-3f9a"
    with odd_server(key=SECRET if own else None) as server:
        with running(policies / "stops.json", server, **options) as gateway:
            server.headers.clear()
            for body in (
                chat_body(),
                chat_body(stream=True),
                chat_body(canary),
                chat_body(canary, n=2, user=canary),
                {"model": canary, "messages": canary},
            ):
                gateway.ask(body, Authorization="Bearer of-a-client-1234", X_Canary=canary)
            gateway.ask(path=f"/v1/{canary}?{canary}", method="GET")
            server.always = "500"
            gateway.ask(chat_body(canary), Authorization="Bearer of-a-client-1234")
            expected = f"Bearer {SECRET}" if own else "Bearer of-a-client-1234"
            assert {given["authorization"] for given in server.named} == {expected}
            assert len(server.named) > 8
            gateway.record(7)
            exported = gateway.get("/metrics").body.decode()
        logged = gateway.logged.getvalue()
    for text in (canary, SECRET, "of-a-client", "3+4", "Final answer"):
        assert text not in logged
        assert text not in exported


# --- What the port says of the gateway, and reloads -----------------------------------------------


def test_health_and_readiness(server: OddServer, gateway: RunningGateway) -> None:
    assert gateway.get("/healthz").status == gateway.get("/readyz").status == 200
    gateway.gateway.draining = True
    try:
        assert (gateway.get("/readyz").status, gateway.get("/healthz").status) == (503, 200)
    finally:
        gateway.gateway.draining = False
    text = gateway.get("/metrics").body.decode()
    assert 'stopadvisor_upstream_up{upstream="0"} 1.0' in text
    assert "stopadvisor_policy_info{" in text


def test_reload_swaps_whole_or_not_at_all(
    server: OddServer, policies: Path, tmp_path: Path
) -> None:
    path = tmp_path / "policy.json"
    path.write_bytes((policies / "stops.json").read_bytes())
    with running(path, server) as gateway:
        before = gateway.ask(chat_body()).headers["x-stopadvisor"]
        path.write_bytes(b"no policy")
        gateway.reload()
        # The line of the request before it may come later: once the client has its reply.
        (refused,) = (line for line in gateway.lines if line["event"] == "reload-refused")
        assert str(path) in refused["message"]
        assert gateway.ask(chat_body()).headers["x-stopadvisor"] == before
        path.write_bytes((policies / "never.json").read_bytes())
        gateway.reload()
        (named,) = gateway.gateway.names()
        after = gateway.ask(chat_body())
        assert after.headers["x-stopadvisor"].endswith(named["digest"])
        assert after.headers["x-stopadvisor"] != before
        assert after.json["choices"][0]["message"]["content"] == Story().visible
        assert "upstream-down" not in {line["event"] for line in gateway.lines}


# --- The start ------------------------------------------------------------------------------------


def test_what_cannot_work_does_not_start(server: OddServer, policies: Path, tmp_path: Path) -> None:
    def refused(error: type[Exception], match: str, path: Path, **changes: Any) -> None:
        also = [changes.pop("also")] if "also" in changes else []
        servers = [changes.pop("url", server), *also]
        with pytest.raises(error, match=match), running(path, *servers, **changes):
            pass

    refused(PolicyError, "expected a policy .* in it, got none", tmp_path)
    (two := tmp_path / "two").mkdir()
    for name in ("stops.json", "never.json"):
        shutil.copy(policies / name, two)
    refused(PolicyError, "--model is for one policy, got 2", two, model="tiny-reasoner")
    refused(PolicyError, "expected one policy for each model and task, got a second", policies)
    refused(ModelError, "does not serve the model 'other'", policies / "stops.json", model="other")
    with fake_server(context=700) as small:
        refused(ModelError, "beyond the server's context", policies / "stops.json", url=small)
    with fake_server(context=700) as small:  # whichever is checked first
        refused(ModelError, "beyond the server's context", policies / "stops.json", also=small)
    path, nobody = policies / "stops.json", "http://127.0.0.1:9/v1"
    refused(EngineError, "no answer for 0.2 s from", path, url=nobody, retry_timeout=0.2)


def test_a_signal_ends_a_gateway_that_still_waits(
    policies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is alive and not ready before an upstream answers."""
    monkeypatch.setattr("stopadvisor.serving.gateway.server.Metrics", lambda: Metrics(Registry()))
    port = free_port()
    nobody = f"http://127.0.0.1:{free_port()}/v1"
    settings = GatewaySettings(policies / "stops.json", upstreams=(nobody,), port=port)
    seen: list[int] = []

    def look() -> None:
        for path in ("/healthz", "/readyz"):
            until(lambda path=path: _status(port, path) != 0)  # type: ignore[misc]
            seen.append(_status(port, path))
        os.kill(os.getpid(), signal.SIGTERM)

    logged = io.StringIO()
    with ThreadPoolExecutor() as threads:
        threads.submit(look)
        assert serve(settings, logged) == 0
    assert seen == [200, 503]
    first, *later = map(json.loads, logged.getvalue().splitlines())
    assert (first["event"], first["upstreams"], first["seconds"]) == ("waiting", [nobody], 300.0)
    assert "ready" not in [line["event"] for line in later]
    assert [line["event"] for line in later[-2:]] == ["draining", "stopped"]


def _status(port: int, path: str) -> int:
    """Of a page; 0 where nobody answers."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return 0
