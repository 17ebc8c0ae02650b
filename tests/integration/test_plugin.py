"""A policy inside a real vLLM gives the official client the replies of the local engine."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from stopadvisor.policy.frozen import Policy, load_policy, save_policy
from stopadvisor.policy.requests import Reply, Request, make_requests, policy_plan
from stopadvisor.serving.serve_settings import ServeSettings
from stopadvisor.workload.questions import read_workload
from tests.integration.asking import ask_all, busy, differing, gauges, metrics
from tests.integration.conftest import POLICY
from tests.integration.server import (
    AS_CALIBRATED,
    NAME,
    ROOT,
    TINY_REASONER,
    VllmServer,
    server_with,
)
from tests.material import easiest
from tests.policy_content import family_content, policy_from

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow]


@dataclass(frozen=True)
class Served:
    """A server with a policy, and the local engine's replies under it."""

    server: VllmServer
    policy: Policy
    local: HfEngine
    _known: dict[str, Reply] = field(default_factory=dict)

    def differing(self, count: int, *, stream: bool, at_once: int) -> list[int]:
        """Ask `count` questions; return the numbers of replies that differ from the local ones."""
        requests, replayed = self.replay(count)
        seen = ask_all(self.server.port, requests, stream=stream, at_once=at_once)
        return differing(self.policy, seen, replayed)

    def differing_while_busy(
        self, count: int, *, stream: bool, at_once: int, processors: int = 0
    ) -> list[int]:
        """Do the same on a busy machine; check that usage counts every decoded token."""
        requests, replayed = self.replay(count)
        before = metrics(self.server)["vllm:generation_tokens_total"]
        with busy(self.server, processors=processors):
            seen = ask_all(self.server.port, requests, stream=stream, at_once=at_once)
        decoded = metrics(self.server)["vllm:generation_tokens_total"] - before
        assert sum(found.usage["completion_tokens"] for found in seen) == decoded
        return differing(self.policy, seen, replayed)

    def replay(self, count: int) -> tuple[list[Request], list[Reply]]:
        """Return `count` requests and the local engine's replies."""
        questions = read_workload(ROOT / "samples" / "arithmetic.jsonl").questions[:count]
        requests = make_requests(questions, self.policy)
        new = [request for request in requests if request.prompt.key not in self._known]
        plan = policy_plan(self.policy)
        for i, reply in self.local.serve(new, plan, self.policy, batch_size=64):
            self._known[new[i].prompt.key] = reply
        replayed = [self._known[request.prompt.key] for request in requests]
        assert len({reply.budget for reply in replayed}) >= 3, "stops at several checkpoints"
        return requests, replayed


ENTROPY = {
    "budgets": [5, 11, 19, 27, 35, 43, 59, 75, 101, 129],
    "entropy_source": "top-k:20",
    "probe": {"cue": {"text": "\n\n", "ids": None}},
}
"""Changes to the bundled policy: answers have several tokens, so vLLM merges relevant positions."""


def entropy_policy() -> Policy:
    bundled = load_policy(POLICY).content
    names = ("prompt_template", "sampling", "max_think", "model", "engine")
    bound = {name: bundled[name] for name in names} | ENTROPY
    bound["probe"] = bundled["probe"] | bound["probe"]
    return policy_from(family_content("entropy", -0.3) | bound)


def use(plugin: VllmServer, policy: Policy, requests: list[Request], *, after: Policy) -> None:
    """Replace the policy that is in use; until it answers all these requests both do."""
    save_policy(policy, plugin.folder / "policy.joblib")
    os.kill(plugin.pid, signal.SIGHUP)
    deadline = time.monotonic() + 480  # against a hang; a starved engine needs minutes
    while (found := headers(plugin, requests)) != {covered_by(policy)}:
        assert found <= {covered_by(policy), covered_by(after)}
        assert time.monotonic() < deadline


def headers(plugin: VllmServer, requests: list[Request]) -> set[str]:
    return {seen.header for seen in ask_all(plugin.port, requests, stream=False)}


def covered_by(policy: Policy) -> str:
    return f"policy; reason=covered; digest={policy.digest[:8]}"


@pytest.fixture(scope="module")
def known() -> dict[str, dict[str, Reply]]:
    """The local engine's replies by policy and question, filled in on first use."""
    return {}


@pytest.fixture(params=["bundled", pytest.param("entropy", marks=pytest.mark.long)])
def served(
    request: pytest.FixtureRequest,
    plugin: VllmServer,
    policy: Policy,
    requests: list[Request],
    local: HfEngine,
    known: dict[str, dict[str, Reply]],
) -> Iterator[Served]:
    """The server with its own policy, and with another one for the time of a test."""
    if request.param == "bundled":
        yield Served(plugin, policy, local, known.setdefault("bundled", {}))
        return
    other = entropy_policy()
    use(plugin, other, requests[:1], after=policy)
    yield Served(plugin, other, local, known.setdefault("entropy", {}))
    use(plugin, policy, requests[:1], after=other)


def test_replies_are_those_of_the_local_replay_on_a_busy_machine(served: Served) -> None:
    for stream in (False, True):
        assert served.differing_while_busy(24, stream=stream, at_once=24) == []


@pytest.mark.long
@pytest.mark.parametrize("at_once", [1, 8, 48])
@pytest.mark.parametrize("stream", [False, True])
def test_no_reply_of_400_differs_on_a_busy_machine(
    served: Served, stream: bool, at_once: int
) -> None:
    found = served.differing_while_busy(
        400, stream=stream, at_once=at_once, processors=os.cpu_count() or 1
    )
    assert found == []


OTHER_ENGINES = {
    "speculative decoding": (
        "--speculative-config",
        '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}',
    ),
    "no prefix caching": ("--no-enable-prefix-caching",),
    "chunked prefill": ("--max-num-batched-tokens", "32", "--max-num-seqs", "16"),
    "several API servers": ("--api-server-count", "2"),
    "tensor parallel": ("--tensor-parallel-size", "2", "--distributed-executor-backend", "mp"),
}
"""Settings of vLLM that must not change the policy's replies."""


@pytest.mark.long  # each starts vLLM
@pytest.mark.parametrize("arguments", OTHER_ENGINES.values(), ids=list(OTHER_ENGINES))
def test_replies_are_the_same_however_the_engine_works(
    arguments: tuple[str, ...], vllm_home: Path, policy: Policy, local: HfEngine, tmp_path: Path
) -> None:
    server = server_with(ServeSettings(POLICY), vllm_home, tmp_path, *arguments)
    count = 80
    if "--tensor-parallel-size" in arguments:  # by default vLLM needs a memory node for each
        server.environment = {**server.environment, "VLLM_CPU_OMP_THREADS_BIND": "0|1"}
        count = 24  # two ranks keep two cores busy for every token
    with server:
        served = Served(server, policy, local)
        assert served.differing(count, stream=False, at_once=8) == []
        assert served.differing(count, stream=True, at_once=8) == []


@pytest.mark.long
def test_an_adapter_is_passed_on_and_its_base_is_served(
    vllm_home: Path, policy: Policy, local: HfEngine, tmp_path: Path
) -> None:
    adapter = write_adapter(tmp_path / "adapter")
    lora = ("--enable-lora", "--lora-modules", f"adapted={adapter}")
    with server_with(ServeSettings(POLICY), vllm_home, tmp_path, *lora) as server:
        served = Served(server, policy, local)
        messages = list(served.replay(80)[0][0].prompt.messages)
        adapted = raw_answer(server, {"model": "adapted", "messages": messages})
        assert adapted[0] == 200
        assert adapted[2] is not None
        assert adapted[2].startswith("passthrough; reason=model;")
        assert served.differing(80, stream=False, at_once=8) == []


def write_adapter(folder: Path) -> Path:
    """Save a LoRA adapter that randomly changes the tiny reasoner's queries."""
    hidden, rank, layers = 128, 8, 4
    rng = np.random.default_rng(0)
    weights = {}
    for layer in range(layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = rng.normal(size=(rank, hidden)).astype(np.float32)
        weights[f"{name}.lora_B.weight"] = rng.normal(size=(hidden, rank)).astype(np.float32)
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": str(TINY_REASONER),
        "r": rank,
        "lora_alpha": rank,
        "target_modules": ["q_proj"],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_what_is_not_covered_is_answered_byte_for_byte_as_without_the_plugin(
    plugin: VllmServer, vllm: VllmServer, policy: Policy
) -> None:
    messages = list(make_requests(easiest(1), policy)[0].prompt.messages)
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("logprobs", {"logprobs": True, "top_logprobs": 2, "max_tokens": 40}),
        ("max-tokens", {"max_tokens": 7}),
        ("n", {"n": 2, "temperature": 0.8, "seed": 3, "max_tokens": 40}),
        ("stop", {"stop": ["So"]}),
        ("tools", {"tools": [], "tool_choice": "required"}),
        ("field", {"temperature": "hot"}),
    ]
    for server in (vllm, plugin):  # usage counts cached tokens: make them equal
        raw_answer(server, {"model": NAME, "messages": messages, "max_tokens": 1})
    for reason, fields in bodies:
        body = {"model": NAME, "messages": messages, "temperature": 0} | fields
        theirs, ours = (raw_answer(server, body) for server in (vllm, plugin))
        assert ours[:2] == theirs[:2], reason
        assert theirs[2] is None
        assert ours[2] is not None
        assert f"passthrough; reason={reason if ours[0] == 200 else 'error'};" in ours[2]
    # Chunk boundaries of a stream depend on timing, so only its text is compared.
    body = {"model": NAME, "messages": messages, "temperature": 0, "stop": ["So"], "stream": True}
    theirs, ours = (raw_answer(server, body) for server in (vllm, plugin))
    texts = [
        b"".join(re.findall(rb'"(?:content|reasoning)":"([^"]*)"', found[1]))
        for found in (theirs, ours)
    ]
    assert texts[0] == texts[1] != b""
    assert ours[1].endswith(b"data: [DONE]\n\n")


@pytest.mark.long  # starts two servers; test_monitoring compares replies of a shadow, too
def test_in_its_shadow_a_policy_changes_no_reply(
    vllm_home: Path, requests: list[Request], tmp_path: Path
) -> None:
    """Without the plugin the template opens the thinking, as this small model never does."""
    own = json.loads((TINY_REASONER / "tokenizer_config.json").read_text())["chat_template"]
    template = tmp_path / "plain" / "template.jinja"
    template.parent.mkdir()
    template.write_text(own + "<think>")
    words = (*AS_CALIBRATED, "--chat-template", str(template))
    with (
        VllmServer(vllm_home, template.parent, words) as vllm,
        server_with(ServeSettings(POLICY, shadow=True), vllm_home, tmp_path) as server,
    ):
        bodies: list[dict[str, Any]] = [
            {"model": NAME, "messages": list(request.prompt.messages)} for request in requests[:16]
        ]
        for body in bodies[1::2]:
            body["max_tokens"] = 960 + 1 + 512
        with ThreadPoolExecutor(len(bodies)) as clients:  # requests share the model's steps
            their, our = (
                list(clients.map(partial(raw_answer, at), bodies)) for at in (vllm, server)
            )
        for theirs, ours in zip(their, our, strict=True):
            assert ours[2] is not None
            assert ours[2].startswith("shadow; reason=covered;")
            (their_choice,), (our_choice,) = (json.loads(x[1])["choices"] for x in (theirs, ours))
            assert our_choice["finish_reason"] == their_choice["finish_reason"]
            for name in ("reasoning", "content"):
                assert our_choice["message"][name] == their_choice["message"][name]
        assert metrics(server)["stopadvisor_stops_total"] > 0


def raw_answer(server: VllmServer, body: dict[str, Any]) -> tuple[int, bytes, str | None]:
    """Return status, body (without id, time and server settings) and our header."""
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
    data = re.sub(own, b'"x":0', data)
    return status, data, header


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_leave_in_every_state_leave_nothing_behind(
    plugin: VllmServer, requests: list[Request], stream: bool
) -> None:
    """Clients leave while their request is queued, thinking, probing, writing and finished."""
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
        # The engine updates its gauges only when it decodes, so send a request.
        ask_all(plugin.port, requests[1:2], stream=False)
    assert gauges(plugin) == {
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "stopadvisor_requests_in_flight": 0,
    }


def test_metrics_stand_next_to_those_of_vllm(plugin: VllmServer, requests: list[Request]) -> None:
    before = metrics(plugin)
    ask_all(plugin.port, requests[:8], stream=False)
    after = metrics(plugin)
    new = {name: after[name] - before.get(name, 0.0) for name in after}
    assert new["stopadvisor_requests_total"] == 8
    assert new["stopadvisor_probe_seconds_count"] >= 8
    assert new["stopadvisor_stops_total"] >= 1
    assert new["vllm:request_success_total"] >= 8


def test_policies_are_replaced_under_load_and_taken_back(
    plugin: VllmServer,
    policy: Policy,
    requests: list[Request],
    local: HfEngine,
    known: dict[str, dict[str, Reply]],
) -> None:
    other, asked = entropy_policy(), requests[:6]
    use(plugin, other, asked, after=policy)
    served = Served(plugin, other, local, known.setdefault("entropy", {}))
    for stream in (False, True):
        assert served.differing_while_busy(12, stream=stream, at_once=12) == []
    (plugin.folder / "policy.joblib").write_bytes(b"no policy")
    os.kill(plugin.pid, signal.SIGHUP)
    deadline = time.monotonic() + 480
    while "reload refused, the policies in use stay" not in plugin.log.read_text(errors="replace"):
        assert headers(plugin, asked) == {covered_by(other)}
        assert time.monotonic() < deadline
    assert headers(plugin, asked) == {covered_by(other)}
    use(plugin, policy, asked, after=other)


@pytest.mark.long  # starts vLLM; tests/serving/vllm tests each refusal and how the process ends
def test_a_policy_that_does_not_fit_ends_vllm_in_one_line(vllm_home: Path, tmp_path: Path) -> None:
    server = server_with(ServeSettings(POLICY), vllm_home, tmp_path, "--dtype", "bfloat16")
    with pytest.raises(RuntimeError, match="does not start"):
        server.start()
    message = "the policy was calibrated with dtype 'float32', got 'bfloat16'"
    said = [line for line in server.log.read_text().splitlines() if message in line]
    assert len(said) == 1
    assert said[0].startswith("stopadvisor: ")
