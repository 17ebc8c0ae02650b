"""The gateway in front of a real server gives the official client the local engine's replies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stopadvisor.policy.frozen import Policy, save_policy
from stopadvisor.policy.requests import Reply, Request, make_requests, policy_plan
from tests.engines.online_policies import rule
from tests.integration.asking import ask_all, differing
from tests.integration.conftest import SIZES
from tests.integration.server import VllmServer
from tests.material import easiest
from tests.serving.gateways import running

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow]

BUDGETS = [0, 16, 43, 64, 129]
PATIENT = {"connect": 60.0, "first": 60.0, "between": 60.0, "total": 300.0, "probe": 60.0}
"""Seconds on a busy machine."""


@pytest.fixture(scope="module")
def policy(local: HfEngine) -> Policy:
    changes = {"budgets": BUDGETS, "entropy_source": "top-k:20", "max_think": 200}
    return rule(local, "run-stability", 2.0, **changes)


@pytest.fixture(scope="module", params=SIZES)
def asked(policy: Policy, request: pytest.FixtureRequest) -> list[Request]:
    return make_requests(easiest(request.param), policy)


@pytest.fixture(scope="module")
def replies(local: HfEngine, policy: Policy, asked: list[Request]) -> list[Reply]:
    """Replies of the local engine."""
    found = dict(local.serve(asked, policy_plan(policy), policy))
    return [found[number] for number in range(len(asked))]


def test_stops_answers_and_thinking_are_the_local_engines(
    policy: Policy, asked: list[Request], replies: list[Reply], vllm: VllmServer, tmp_path: Path
) -> None:
    path = tmp_path / "policy.json"
    save_policy(policy, path)
    with (
        running(path, vllm.base_url, timeouts=PATIENT) as gateway,
        ThreadPoolExecutor(2) as clients,
    ):
        ask = partial(ask_all, gateway.port, asked)
        whole, streamed = clients.map(lambda stream: ask(stream=stream), (False, True))
        ways = {(r["route"], r["reason"], r.get("failed_probes")) for r in gateway.records}
    assert ways == {("policy", "covered", 0)}
    for seen in (whole, streamed):
        assert differing(policy, seen, replies) == []
        prompts = [found.usage["prompt_tokens"] for found in seen]
        assert prompts == [reply.prompt_tokens for reply in replies]
    assert len({reply.stopped_at for reply in replies}) >= 3, "or the comparison shows little"
