"""The gateway before a real server, asked by the official client: the local engine's replies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.engines.hf.engine import HfEngine
from stopadvisor.policy.frozen import Policy, save_policy
from stopadvisor.policy.requests import Reply, Request, make_requests, policy_plan
from stopadvisor.serving.chat_reply import forced_content
from tests.engines.online_policies import rule
from tests.integration.conftest import SIZES
from tests.integration.server import NAME, VllmServer
from tests.material import easiest
from tests.serving.gateways import RunningGateway, running, until

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow]

BUDGETS = [0, 16, 43, 64, 129]
PATIENT = {"connect": 60.0, "first": 60.0, "between": 60.0, "total": 300.0, "probe": 60.0}
"""Seconds on a busy machine."""


@pytest.fixture(scope="module")
def policy(local: HfEngine) -> Policy:
    changes = {"budgets": BUDGETS, "entropy_source": "top-k:20"}
    return rule(local, "run-stability", 2.0, **changes)


@pytest.fixture(scope="module", params=SIZES)
def asked(policy: Policy, request: pytest.FixtureRequest) -> list[Request]:
    return make_requests(easiest(request.param), policy)


@pytest.fixture(scope="module")
def replies(local: HfEngine, policy: Policy, asked: list[Request]) -> list[Reply]:
    """Of the local engine."""
    found = dict(local.serve(asked, policy_plan(policy), policy))
    return [found[number] for number in range(len(asked))]


async def whole(client: Any, request: Request, **fields: Any) -> tuple[str, str, dict[str, Any]]:
    """Thinking, answer and counts of one request."""
    messages = list(request.prompt.messages)
    found = await client.chat.completions.create(model=NAME, messages=messages, **fields)
    message = found.choices[0].message
    return message.reasoning, message.content, found.usage.model_dump()


async def streamed(client: Any, request: Request, **fields: Any) -> tuple[str, str, dict[str, Any]]:
    """The same, put together from a stream's pieces."""
    thinking = content = ""
    usage: dict[str, Any] = {}
    stream = await client.chat.completions.create(
        model=NAME,
        messages=list(request.prompt.messages),
        stream=True,
        stream_options={"include_usage": True},
        **fields,
    )
    async for chunk in stream:
        usage = usage if chunk.usage is None else chunk.usage.model_dump()
        for choice in chunk.choices:
            thinking += getattr(choice.delta, "reasoning", None) or ""
            content += choice.delta.content or ""
    return thinking, content, usage


async def ask_all(port: int, asked: list[Request], how: Any, **fields: Any) -> list[Any]:
    from openai import AsyncOpenAI

    slots = asyncio.Semaphore(16)
    url = f"http://127.0.0.1:{port}/v1"
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

        async def one(request: Request) -> Any:
            async with slots:
                return await how(client, request, **fields)

        return await asyncio.gather(*(one(request) for request in asked))


@pytest.mark.parametrize("how", [whole, streamed])
def test_stops_answers_and_thinking_are_the_local_engines(
    policy: Policy,
    asked: list[Request],
    replies: list[Reply],
    vllm: VllmServer,
    tmp_path: Path,
    how: Any,
) -> None:
    save_policy(policy, tmp_path / "policy.json")
    cue = policy_plan(policy).cue
    path = tmp_path / "policy.json"
    with running(path, vllm.base_url, timeouts=PATIENT) as gateway:
        found = asyncio.run(ask_all(gateway.port, asked, how))
        ways = {(r["route"], r["reason"], r.get("failed_probes")) for r in gateway.records}
    assert ways == {("policy", "covered", 0)}
    for (thinking, content, usage), reply in zip(found, replies, strict=True):
        assert thinking == reply.thinking
        expected = reply.text or ""
        if reply.finish == "stopped":
            expected = forced_content(cue, expected)
        assert (content or "") == expected
        own = usage["stopadvisor"]
        assert own["budget"] == reply.budget
        assert (own["probes"], own["probe_tokens"]) == (reply.n_probes, reply.probe_tokens)
        assert usage["prompt_tokens"] == reply.prompt_tokens
    assert len({reply.stopped_at for reply in replies}) >= 3, "or the comparison shows little"


def test_what_is_not_covered_is_the_servers_own_answer(
    policy: Policy, vllm: VllmServer, asked: list[Request], tmp_path: Path
) -> None:
    """Bytes but for the name and the time that the server gives each answer."""
    save_policy(policy, tmp_path / "policy.json")
    body: dict[str, Any] = {
        "model": NAME,
        "messages": list(asked[0].prompt.messages),
        "max_tokens": 20,
    }
    body["temperature"] = 0
    with running(tmp_path / "policy.json", vllm.base_url, timeouts=PATIENT) as gateway:
        answer = gateway.ask(body)
        direct = gateway.ask(body, port=vllm.port)
        assert answer.way == "passthrough; reason=max-tokens"
        for name in ("choices", "model"):  # what was cached differs the second time
            assert answer.json[name] == direct.json[name]
        stream = gateway.ask({**body, "stream": True})
        message = direct.json["choices"][0]["message"]
        for name in ("reasoning", "content"):
            assert stream.text(name) == (message[name] or "")


def running_at(vllm: VllmServer, gateway: RunningGateway) -> float:
    """Requests that the server is working on."""
    url = gateway.ask(path="/metrics", method="GET", port=vllm.port).body.decode()
    counts = [
        float(line.rpartition(" ")[2])
        for line in url.splitlines()
        if line.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting{"))
    ]
    assert counts
    return sum(counts)


def test_the_server_works_for_nobody_who_has_left(
    policy: Policy, vllm: VllmServer, asked: list[Request], tmp_path: Path
) -> None:
    save_policy(policy, tmp_path / "policy.json")

    async def leave(port: int) -> None:
        from openai import AsyncOpenAI

        url = f"http://127.0.0.1:{port}/v1"
        for after in (0.02, 0.1, 0.3):
            async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
                work = [
                    asyncio.create_task(how(client, request))
                    for how in (whole, streamed)
                    for request in asked[:6]
                ]
                await asyncio.sleep(after)
                for task in work:
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)

    path = tmp_path / "policy.json"
    with running(path, vllm.base_url, timeouts=PATIENT) as gateway:
        asyncio.run(leave(gateway.port))
        until(lambda: running_at(vllm, gateway) == 0)
        until(lambda: "client-gone" in {r.get("error") for r in gateway.records})
        assert (
            gateway.ask({"model": NAME, "messages": list(asked[0].prompt.messages)}).status == 200
        )
