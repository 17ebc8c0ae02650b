"""A real server behind a gateway that offers its chat alone: probed, assessed and served by it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.cli.main import main
from stopadvisor.collection.collect import make_prompts
from stopadvisor.engines import openai
from stopadvisor.engines.openai.engine import OpenAiEngine
from stopadvisor.engines.openai.regime import read_regime
from stopadvisor.policy.frozen import Policy, build_policy, policy_source
from stopadvisor.policy.requests import make_requests
from stopadvisor.probes.plan import RawTrace
from stopadvisor.workload.questions import read_workload
from tests.integration.proxy import FaultProxy, every
from tests.integration.server import NAME, ROOT, VllmServer
from tests.integration.test_parity import PLAN
from tests.integration.test_regime import assessed, measured
from tests.policy_content import family_content

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow]

N_QUESTIONS = 20
SILENT = replace(PLAN, entropy="none")


def knows_chat_only(path: str, body: bytes) -> bool:
    """Refuse everything else."""
    del body
    return not path.endswith(("/chat/completions", "/models"))


@pytest.fixture
def gateway(chatting: VllmServer) -> Iterator[FaultProxy]:
    with FaultProxy(chatting.port, unknown=knows_chat_only) as proxy:
        yield proxy


@pytest.fixture
def by_chat(gateway: FaultProxy) -> Iterator[OpenAiEngine]:
    engine = openai.load_engine(NAME, [gateway.base_url], concurrency=N_QUESTIONS)
    yield engine
    engine.close()


_RECORDED: list[RawTrace] = []


@pytest.fixture
def recorded(by_chat: OpenAiEngine) -> list[RawTrace]:
    """What nothing disturbed; asked for once."""
    if not _RECORDED:
        _RECORDED.extend(by_chat.probe(make_prompts(questions(), None), SILENT))
    return _RECORDED


def questions() -> Any:
    return read_workload(ROOT / "samples" / "arithmetic.jsonl").questions[:N_QUESTIONS]


def policy_at(engine: OpenAiEngine) -> Policy:
    identity = engine.identity()
    own: dict[str, Any] = {
        **policy_source(identity),
        "budgets": [15, 40, 60, 120],
        "probe": {
            "closer": identity["think_close"],
            "cue": {"text": SILENT.cue, "ids": None},
            "cap": SILENT.cap,
            "stop_ids": identity["stop_ids"],
        },
        "sampling": {"greedy": True, "temperature": None, "seed": 5},
        "chat_template_kwargs": {},
        "entropy_source": "none",
        "max_think": SILENT.max_think,
    }
    return Policy(build_policy(family_content("run-stability", 2.0) | own))


def test_what_works_is_found(by_chat: OpenAiEngine) -> None:
    assert by_chat.served_model.endpoint.way == "visible-stream"
    assert "(continue_final_message)" in by_chat.remarks[0]


def test_the_same_traces_and_answers_as_on_ids(
    recorded: list[RawTrace], chatting: VllmServer
) -> None:
    on_ids = openai.load_engine(NAME, [chatting.base_url], concurrency=N_QUESTIONS)
    try:
        expected = on_ids.probe(make_prompts(questions(), None), SILENT)
    finally:
        on_ids.close()
    # This tokenizer cuts text in one way only, so nothing is lost on the way; but of no thinking
    # at all a chat is sent a newline.
    assert [t.probes[1:] for t in recorded] == [t.probes[1:] for t in expected]
    bare = [[replace(trace, probes=()) for trace in traces] for traces in (recorded, expected)]
    assert bare[0] == bare[1]


def test_it_stops_as_on_ids(by_chat: OpenAiEngine, chatting: VllmServer) -> None:
    on_ids = openai.load_engine(NAME, [chatting.base_url], concurrency=N_QUESTIONS)
    found = []
    for engine in (by_chat, on_ids):
        policy = policy_at(engine)
        asked = make_requests(questions(), policy)
        replies = dict(engine.serve(asked, engine.policy_plan(policy), policy, serving="overlap"))
        found.append(
            [
                asdict(replies[i])
                | {"seconds": 0.0}
                | ({"think_tokens": 0} if replies[i].finish == "stopped" else {})
                for i in range(len(asked))
            ]
        )
    on_ids.close()
    assert found[0] == found[1]
    assert len({reply["stopped_at"] for reply in found[0]}) >= 3


def test_broken_streams_cost_time_alone(
    recorded: list[RawTrace], by_chat: OpenAiEngine, chatting: VllmServer
) -> None:
    policy = policy_at(by_chat)
    asked = make_requests(questions(), policy)
    calm = dict(by_chat.serve(asked, by_chat.policy_plan(policy), policy, serving="overlap"))
    with FaultProxy(chatting.port, every(5, "cut-body"), unknown=knows_chat_only) as proxy:
        engine = openai.load_engine(NAME, [proxy.base_url], concurrency=10)
        try:
            assert engine.probe(make_prompts(questions(), None), SILENT) == recorded
            found = dict(engine.serve(asked, engine.policy_plan(policy), policy, serving="overlap"))
        finally:
            engine.close()
    assert proxy.seen["cut-body"] >= 20
    for i, reply in found.items():
        assert (reply.stopped_at, reply.text) == (calm[i].stopped_at, calm[i].text)


def test_assess_costs_with_overlap(
    gateway: FaultProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (ROOT / "samples" / "arithmetic.jsonl").read_text(encoding="utf-8").splitlines()
    few = tmp_path / "few.jsonl"
    few.write_text("\n".join(lines[:60]) + "\n", encoding="utf-8")
    at = ("--engine", "openai", "--base-url", gateway.base_url, "--concurrency", "32")
    out = tmp_path / "run"
    words = ("--out", str(out), "--model", NAME, "--split", "50/50/0", "--budgets", "0,15,40,60")
    code = main(["assess", str(few), *words, *at, "--greedy", "--no-report", "--json"])
    text = capsys.readouterr()
    assert code == 0, text
    assert "openai-chat" in (out / "manifest.json").read_text(encoding="utf-8")
    document = json.loads(text.out)
    assert document["recommendation"]["serving"] == "overlap"
    assert document["server"]["regime"] == "overlap"
    assert set(document["serving"]) & {"overlap"}


def test_a_server_that_caches_nothing_is_a_black_box(
    chatting: VllmServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = measured(chatting)
    assert (found.regime, found.cache_block) == ("black-box", None)
    document = assessed(chatting, tmp_path, capsys)
    kept = read_regime(tmp_path / "run")
    assert kept is not None
    assert document["server"]["regime"] == kept.regime == "black-box"
    assert document["recommendation"]["serving"] == document["server"]["regime"]
