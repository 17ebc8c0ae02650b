"""The gateway before a real server, asked by the official client: the local engine's replies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from stopadvisor.engines.hf.engine import HfEngine
from stopadvisor.policy.frozen import Policy, save_policy
from stopadvisor.policy.requests import Reply, Request, make_requests, policy_plan
from tests.engines.online_policies import rule
from tests.integration.asking import ask, ask_all, differing, metrics
from tests.integration.conftest import SIZES
from tests.integration.server import NAME, VllmServer
from tests.material import easiest
from tests.serving.gateways import running, until

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


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_stops_answers_and_thinking_are_the_local_engines(
    policy: Policy,
    asked: list[Request],
    replies: list[Reply],
    vllm: VllmServer,
    tmp_path: Path,
    stream: bool,
) -> None:
    path = tmp_path / "policy.json"
    save_policy(policy, path)
    with running(path, vllm.base_url, timeouts=PATIENT) as gateway:
        seen = ask_all(gateway.port, asked, stream=stream)
        ways = {(r["route"], r["reason"], r.get("failed_probes")) for r in gateway.records}
    assert ways == {("policy", "covered", 0)}
    assert differing(policy, seen, replies) == []
    assert [found.usage["prompt_tokens"] for found in seen] == [r.prompt_tokens for r in replies]
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


def test_the_server_works_for_nobody_who_has_left(
    policy: Policy, vllm: VllmServer, asked: list[Request], tmp_path: Path
) -> None:
    path = tmp_path / "policy.json"
    save_policy(policy, path)

    async def leave(port: int) -> None:
        url = f"http://127.0.0.1:{port}/v1"
        for after in (0.02, 0.1, 0.3, 1.0, 3.0):  # a busy machine takes its time
            async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
                work = [
                    asyncio.create_task(ask(client, request, stream=stream))
                    for stream in (False, True)
                    for request in asked[:6]
                ]
                await asyncio.sleep(after)
                for task in work:
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)

    with running(path, vllm.base_url, timeouts=PATIENT) as gateway:
        asyncio.run(leave(gateway.port))
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        until(lambda: not any(metrics(vllm)[name] for name in names))
        until(lambda: "client-gone" in {r.get("error") for r in gateway.records})
        body = {"model": NAME, "messages": list(asked[0].prompt.messages)}
        assert gateway.ask(body).status == 200
