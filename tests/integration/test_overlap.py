"""Overlap at a real server: the stops of resumed thinking, the traces of probing, streams ended."""

from __future__ import annotations

import re
import time
import urllib.request
from dataclasses import asdict
from typing import Any

import pytest

from stopadvisor.engines.hf.engine import HfEngine
from stopadvisor.engines.openai import open_servers
from stopadvisor.engines.openai.engine import OpenAiEngine
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import (
    OnStop,
    Reply,
    Request,
    ThinkingMode,
    make_requests,
    policy_plan,
)
from stopadvisor.workload.questions import read_workload
from tests.engines.online_policies import rule
from tests.integration.proxy import FAULTS, FaultProxy, every
from tests.integration.server import NAME, ROOT, VllmServer
from tests.material import easiest

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow]

BUDGETS = [0, 16, 43, 64, 129]
N_QUESTIONS = 16
SAMPLED = {"sampling": {"greedy": False, "temperature": 1.0, "seed": 5}}


def policy_of(local: HfEngine, family: str, threshold: float, **changes: Any) -> Policy:
    own: dict[str, Any] = {"budgets": BUDGETS, "entropy_source": "top-k:20"}
    own["sampling"] = {"greedy": True, "temperature": None, "seed": 5}
    return rule(local, family, threshold, **(own | changes))


def requests_of(policy: Policy, number: int = N_QUESTIONS) -> list[Request]:
    return make_requests(easiest(number), policy)


def served(
    engine: OpenAiEngine,
    policy: Policy,
    serving: ThinkingMode,
    on_stop: OnStop = "probe",
    **how: Any,
) -> list[Reply]:
    asked, plan = requests_of(policy, **how), policy_plan(policy, at_server=True)
    replies = dict(engine.serve(asked, plan, policy, on_stop=on_stop, serving=serving))
    return [replies[i] for i in range(len(asked))]


_RESUMED: dict[tuple[str, float, OnStop], list[Reply]] = {}


def resumed(
    local: HfEngine, remote: OpenAiEngine, family: str, threshold: float, on_stop: OnStop = "probe"
) -> list[Reply]:
    """What thinking in parts gives where nothing disturbs it; asked for once."""
    key = (family, threshold, on_stop)
    if key not in _RESUMED:
        _RESUMED[key] = served(remote, policy_of(local, family, threshold), "resume", on_stop)
    return _RESUMED[key]


def same(replies: list[Reply]) -> list[dict[str, Any]]:
    """Without time, and without what a stopped stream had thought in vain."""
    return [
        asdict(r) | {"seconds": 0, "think_tokens": 0 if r.finish == "stopped" else r.think_tokens}
        for r in replies
    ]


@pytest.mark.parametrize(
    ("family", "threshold", "on_stop"),
    [
        pytest.param("run-stability", 2.0, "probe", id="run-stability"),
        pytest.param("entropy", -0.3, "probe", id="entropy"),
        pytest.param("run-stability", 2.0, "answer", id="visible answers"),
        pytest.param("run-stability", 9.0, "probe", id="never stopped"),
    ],
)
def test_stops_answers_and_probe_tokens_are_those_of_resumed_thinking(
    local: HfEngine, remote: OpenAiEngine, family: str, threshold: float, on_stop: OnStop
) -> None:
    overlapping = served(remote, policy_of(local, family, threshold), "overlap", on_stop)
    expected = resumed(local, remote, family, threshold, on_stop)
    assert same(overlapping) == same(expected)
    for one, other in zip(overlapping, expected, strict=True):
        assert one.think_tokens >= other.think_tokens
    if threshold < 9:
        assert len({r.stopped_at for r in overlapping}) >= 3


def test_sampled_traces_are_those_that_probing_records(
    local: HfEngine, remote: OpenAiEngine
) -> None:
    policy = policy_of(local, "run-stability", 9.0, **SAMPLED)  # thinks to the end, probed
    asked = [request.prompt for request in requests_of(policy, 20)]
    recorded = [trace.thinking for trace in remote.probe(asked, remote.policy_plan(policy))]
    overlapping = served(remote, policy, "overlap", number=20)
    in_parts = served(remote, policy, "resume", number=20)
    assert all(reply.n_probes for reply in overlapping if reply.think_tokens)
    assert [reply.thinking for reply in overlapping] == recorded
    assert [reply.thinking for reply in in_parts] != recorded, "parts have seeds of their own"
    # So are the stops: each on the thinking that was recorded.
    stopping = policy_of(local, "run-stability", 2.0, **SAMPLED)
    for reply, thinking in zip(
        served(remote, stopping, "overlap", number=20), recorded, strict=True
    ):
        assert thinking.startswith(reply.thinking)


def test_broken_streams_cost_time_alone(
    local: HfEngine, remote: OpenAiEngine, vllm: VllmServer
) -> None:
    policy = policy_of(local, "run-stability", 2.0)
    calm = resumed(local, remote, "run-stability", 2.0)
    faults = [fault for fault in FAULTS if fault != "hang"]
    with FaultProxy(vllm.port, every(3, *faults)) as proxy:
        engine = open_servers(NAME, [proxy.base_url], concurrency=16)
        try:
            found = served(engine, policy, "overlap")
        finally:
            engine.close()
    assert all(proxy.seen[fault] >= 3 for fault in faults), proxy.seen
    assert same(found) == same(calm)


def metric(server: VllmServer, name: str) -> float:
    """A counter of the server, over all its labels."""
    url = f"http://127.0.0.1:{server.port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as reply:
        text = reply.read().decode()
    found = re.findall(rf"^vllm:{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


def test_the_server_gives_up_what_is_broken_off(local: HfEngine, vllm: VllmServer) -> None:
    policy = policy_of(local, "confidence", -600.0)  # stops at the first checkpoint that is alive
    plan = policy_plan(policy, at_server=True)
    questions = read_workload(ROOT / "samples" / "arithmetic.jsonl").questions
    asked = make_requests([q for q in questions if q.category == "7 operands"][:8], policy)
    remote = open_servers(NAME, [vllm.base_url], concurrency=4)
    try:
        whole = sum(reply.think_tokens for _, reply in remote.serve(asked, plan, None))
        # How much was on its way when a connection was closed is a matter of speed: a busy client
        # may hear of a stop after the last token.  A server that gave nothing up would decode the
        # same probes, and every question's thinking to its end, however often it is asked.
        for _ in range(8):
            before = metric(vllm, "generation_tokens_total")
            replies = [r for _, r in remote.serve(asked, plan, policy, serving="overlap")]
            deadline = time.monotonic() + 60
            while metric(vllm, "num_requests_running") and time.monotonic() < deadline:
                time.sleep(0.05)
            assert metric(vllm, "num_requests_running") == 0
            decoded = metric(vllm, "generation_tokens_total") - before
            assert {reply.finish for reply in replies} == {"stopped"}
            assert sum(reply.decoded_tokens for reply in replies) <= decoded
            nothing_given_up = whole + sum(reply.probe_tokens for reply in replies)
            if decoded < nothing_given_up:
                return
    finally:
        remote.close()
    raise AssertionError("the server decoded on for clients that had left")
