"""The policy inside a real vLLM, asked by the official client and held against the local engine."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from stopadvisor.engines.hf.engine import HfEngine
from stopadvisor.policy.frozen import Policy, load_policy
from stopadvisor.policy.requests import Reply, Request, make_requests, policy_plan
from stopadvisor.serving.chat_reply import forced_content
from stopadvisor.serving.vllm.settings import PluginSettings
from stopadvisor.workload.questions import read_workload
from tests.integration.conftest import AT_ONCE, SIZES
from tests.integration.server import NAME, ROOT, VllmServer, with_plugin

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow]

POLICY = ROOT / "policies" / "arithmetic.joblib"


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(POLICY)


@pytest.fixture(scope="module", params=SIZES)
def requests(policy: Policy, request: pytest.FixtureRequest) -> list[Request]:
    workload = read_workload(ROOT / "samples" / "arithmetic.jsonl")
    return make_requests(workload.questions[: request.param], policy)


@pytest.fixture(scope="module")
def plugin(vllm_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """vLLM with the bundled policy in it, which reads the entropy over the whole vocabulary."""
    folder = tmp_path_factory.mktemp("plugin")
    settings = PluginSettings(POLICY).environment()
    server = VllmServer(
        vllm_home,
        folder,
        ("--max-logprobs", "-1", "--scheduling-policy", "priority"),
        with_plugin(folder, settings),
    )
    server.start()
    yield server
    server.stop()


@dataclass(frozen=True)
class Seen:
    """What a client has of a reply."""

    reasoning: str
    content: str | None
    finish: str
    usage: dict[str, Any]
    header: str


async def ask(client: AsyncOpenAI, request: Request, *, stream: bool) -> Seen:
    messages: Any = list(request.prompt.messages)
    if not stream:
        raw = await client.chat.completions.with_raw_response.create(model=NAME, messages=messages)
        header, reply = raw.headers["x-stopadvisor"], raw.parse()
        (choice,) = reply.choices
        assert choice.message.model_extra is not None
        assert reply.usage is not None
        reasoning, usage = choice.message.model_extra["reasoning_content"], reply.usage.model_dump()
        return Seen(reasoning, choice.message.content, choice.finish_reason, usage, header)
    reasoning, content, finish, usage = "", "", "", {}
    chunks = await client.chat.completions.create(
        model=NAME, messages=messages, stream=True, stream_options={"include_usage": True}
    )
    async for chunk in chunks:
        if chunk.usage is not None:
            usage = chunk.usage.model_dump()
        for part in chunk.choices:
            reasoning += (part.delta.model_extra or {}).get("reasoning_content") or ""
            content += part.delta.content or ""
            finish = part.finish_reason or finish
    header = chunks.response.headers["x-stopadvisor"]
    return Seen(reasoning, content or None, finish, usage, header)


def ask_all(server: VllmServer, requests: list[Request], *, stream: bool) -> list[Seen]:
    async def run() -> list[Seen]:
        places = asyncio.Semaphore(AT_ONCE)
        async with AsyncOpenAI(base_url=server.base_url, api_key="none") as client:

            async def one(request: Request) -> Seen:
                async with places:
                    return await ask(client, request, stream=stream)

            return list(await asyncio.gather(*map(one, requests)))

    return asyncio.run(run())


@pytest.fixture(scope="module")
def replayed(local: HfEngine, policy: Policy, requests: list[Request]) -> list[Reply]:
    """What the local engine answers under the policy."""
    found = dict(local.serve(requests, policy_plan(policy), policy, batch_size=64))
    return [found[i] for i in range(len(requests))]


@pytest.mark.parametrize("stream", [False, True])
def test_stops_answers_and_reasoning_are_those_of_the_local_replay(
    plugin: VllmServer, policy: Policy, requests: list[Request], replayed: list[Reply], stream: bool
) -> None:
    seen = ask_all(plugin, requests, stream=stream)
    cue = policy_plan(policy).cue
    for found, reply in zip(seen, replayed, strict=True):
        stopped = reply.finish == "stopped"
        assert reply.text is not None
        assert found.reasoning == reply.thinking
        assert found.content == (forced_content(cue, reply.text) if stopped else reply.text)
        assert found.finish == "stop"
        details = found.usage["stopadvisor"]
        assert details["budget"] == reply.budget
        assert details["probes"] == reply.n_probes
        in_vain = not stopped and reply.think_tokens in policy.budgets  # it ended just there
        assert details["probe_tokens"] >= reply.probe_tokens
        assert in_vain or details["probe_tokens"] == reply.probe_tokens
        assert found.header == f"policy; reason=covered; digest={policy.digest[:8]}"
        assert (details["discarded_tokens"] > 0) == stopped
    assert len({reply.budget for reply in replayed}) >= 3, "stops at several checkpoints"


def test_what_is_not_covered_is_answered_byte_for_byte_as_without_the_plugin(
    plugin: VllmServer, vllm: VllmServer, requests: list[Request]
) -> None:
    messages = list(requests[0].prompt.messages)
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("logprobs", {"logprobs": True, "top_logprobs": 2, "max_tokens": 900}),
        ("max-tokens", {"max_tokens": 7}),
        ("n", {"n": 2, "temperature": 0.8, "seed": 3}),
        ("stop", {"stop": ["So"]}),
        ("tools", {"tools": [], "tool_choice": "required"}),
    ]
    for server in (vllm, plugin):  # usage names what is cached: let it be the same
        raw_answer(server, {"model": NAME, "messages": messages, "max_tokens": 1})
    for reason, fields in bodies:
        body = {"model": NAME, "messages": messages, "temperature": 0} | fields
        theirs, ours = (raw_answer(server, body) for server in (vllm, plugin))
        assert ours[:2] == theirs[:2], reason
        assert theirs[2] is None
        if ours[0] == 200:
            assert ours[2] is not None
            assert f"passthrough; reason={reason};" in ours[2]
    # How many tokens share a chunk of a stream is a matter of time: its text is compared.
    body = {"model": NAME, "messages": messages, "temperature": 0, "stop": ["So"], "stream": True}
    theirs, ours = (raw_answer(server, body) for server in (vllm, plugin))
    texts = [b"".join(re.findall(rb'"content":"([^"]*)"', found[1])) for found in (theirs, ours)]
    assert texts[0] == texts[1] != b""
    assert ours[1].endswith(b"data: [DONE]\n\n")


def raw_answer(server: VllmServer, body: dict[str, Any]) -> tuple[int, bytes, str | None]:
    """Status, body without its id and time and the server's settings, and our header."""
    request = urllib.request.Request(
        f"{server.base_url}/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            status, data, header = reply.status, reply.read(), reply.headers.get("x-stopadvisor")
    except urllib.error.HTTPError as error:
        status, data, header = error.code, error.read(), error.headers.get("x-stopadvisor")
    own = rb'"created":\d+|"system_fingerprint":"[^"]*"|"id":"chatcmpl-[^"]*"'
    data = re.sub(own, b"", data)
    return status, data, header


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_leave_in_every_state_leave_nothing_behind(
    plugin: VllmServer, requests: list[Request], stream: bool
) -> None:
    """They leave from at once to after the answer: while it queues, thinks, probes and writes."""
    body = {"model": NAME, "messages": list(requests[0].prompt.messages), "stream": stream}
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    ).encode()
    waiting: list[tuple[float, socket.socket]] = []
    for number in range(60):
        client = socket.create_connection(("127.0.0.1", plugin.port))
        client.sendall(head + data)
        waiting.append((time.monotonic() + number * 0.01, client))
    for leaves, client in waiting:
        time.sleep(max(0.0, leaves - time.monotonic()))
        client.close()
    deadline = time.monotonic() + 20
    while any(gauges(plugin).values()) and time.monotonic() < deadline:
        # The engine states its counts when it decodes; a request makes it.
        asyncio.run(_once(plugin, requests[1]))
    assert gauges(plugin) == {
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "stopadvisor_requests_in_flight": 0,
    }


async def _once(server: VllmServer, request: Request) -> Seen:
    async with AsyncOpenAI(base_url=server.base_url, api_key="none") as client:
        return await ask(client, request, stream=False)


def metrics(server: VllmServer) -> dict[str, float]:
    """Sums by name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    found: dict[str, float] = {}
    for name, value in re.findall(r"^([\w:]+)(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE):
        found[name] = found.get(name, 0.0) + float(value)
    return found


def gauges(server: VllmServer) -> dict[str, float]:
    found = metrics(server)
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    return {name: found[name] for name in (*names, "stopadvisor_requests_in_flight")}


def test_metrics_stand_next_to_those_of_vllm(plugin: VllmServer, requests: list[Request]) -> None:
    before = metrics(plugin)
    ask_all(plugin, requests[:20], stream=False)
    after = metrics(plugin)
    new = {name: after[name] - before.get(name, 0.0) for name in after}
    assert new["stopadvisor_requests_total"] == 20
    assert new["stopadvisor_probe_seconds_count"] >= 20
    assert new["stopadvisor_stops_total"] >= 1
    assert new["vllm:request_success_total"] >= 20


@pytest.mark.long  # a start of vLLM; tests/serving/vllm has each refusal, and how a process ends
def test_a_policy_that_does_not_fit_ends_vllm_in_one_line(vllm_home: Path, tmp_path: Path) -> None:
    arguments = ("--dtype", "bfloat16", "--max-logprobs", "-1")
    told = PluginSettings(POLICY).environment()
    server = VllmServer(vllm_home, tmp_path, arguments, with_plugin(tmp_path, told))
    with pytest.raises(RuntimeError, match="does not start"):
        server.start()
    message = "the policy was calibrated with dtype 'float32', got 'bfloat16'"
    said = [line for line in server.log.read_text().splitlines() if message in line]
    assert len(said) == 1
    assert said[0].startswith("stopadvisor: ")
