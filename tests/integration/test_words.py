"""A real server's own tokenizer against the same one here: the same ids, probes and replies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.collection.collect import make_prompts
from stopadvisor.engines.openai import connect, load_engine
from stopadvisor.engines.openai.engine import OpenAiEngine
from stopadvisor.engines.openai.online import serve, server_plan
from stopadvisor.errors import PolicyError
from stopadvisor.policy.frozen import Policy, load_policy, save_policy
from stopadvisor.policy.requests import Reply, make_requests
from stopadvisor.workload.questions import Workload, read_workload
from tests.engines.online_policies import rule
from tests.engines.test_openai_words import TAGS, asked
from tests.integration.server import NAME, ROOT, VllmServer
from tests.integration.test_parity import PLAN, check_same, in_order, probed

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow]

N_QUESTIONS = 50


@pytest.fixture(scope="module")
def workload() -> Workload:
    whole = read_workload(ROOT / "samples" / "arithmetic.jsonl")
    return replace(whole, questions=whole.questions[:N_QUESTIONS])


@pytest.fixture
def loaded(vllm: VllmServer) -> Iterator[OpenAiEngine]:
    engine = load_engine(NAME, [vllm.base_url], concurrency=8)
    yield engine
    engine.close()


@pytest.fixture
def served(vllm: VllmServer) -> Iterator[OpenAiEngine]:
    engine = load_engine(NAME, [vllm.base_url], tokenizer="server", concurrency=8)
    yield engine
    engine.close()


def _policy(engine: OpenAiEngine, folder: Path) -> Policy:
    """A policy from probes of this engine, through its file."""
    policy = rule(
        engine,
        "run-stability",
        2.0,
        budgets=[0, 16, 43, 64],
        entropy_source="top-k:20",
        sampling={"greedy": True, "temperature": None, "seed": 5},
    )
    save_policy(policy.content, folder / "policy.joblib")
    return load_policy(folder / "policy.joblib")


def test_probes_are_those_of_the_tokenizer_here(
    loaded: OpenAiEngine, served: OpenAiEngine, workload: Workload, tmp_path: Path
) -> None:
    theirs = in_order(probed(served, workload, tmp_path / "served").table())
    ours = in_order(probed(loaded, workload, tmp_path / "loaded").table())
    check_same(theirs, ours)


def test_texts_and_prompts_are_those_of_the_tokenizer_here(
    loaded: OpenAiEngine, served: OpenAiEngine, workload: Workload
) -> None:
    prompts = make_prompts(workload.questions, None)
    for prompt in prompts:
        assert served.chat.prompt_ids(prompt.messages) == loaded.chat.prompt_ids(prompt.messages)
    pairs = zip(served.probe(prompts, PLAN), loaded.probe(prompts, PLAN), strict=True)
    for theirs, ours in pairs:
        assert (theirs.thinking, theirs.natural_text) == (ours.thinking, ours.natural_text)
        assert [p.text for p in theirs.probes] == [p.text for p in ours.probes]


def test_what_it_finds_out_is_so(loaded: OpenAiEngine, served: OpenAiEngine) -> None:
    theirs, ours = asked(served), loaded.chat.words
    for name in ("think_open", "think_close", "stop_ids", "model", "model_revision"):
        assert served.identity()[name] == loaded.identity()[name], name
    for special in (True, False):
        ids = ours.encode(TAGS)
        assert theirs.decode(ids, special=special) == ours.decode(ids, special=special)
    assert "answers end at <|im_end|> (2), where the server was seen to stop" in served.remarks[2]


def test_replies_are_those_of_the_tokenizer_here(
    loaded: OpenAiEngine, served: OpenAiEngine, workload: Workload, tmp_path: Path
) -> None:
    policy = _policy(served, tmp_path)
    questions = make_requests(workload.questions, policy)
    theirs, ours = (
        dict(serve(engine, questions, server_plan(policy), policy)) for engine in (served, loaded)
    )

    def untimed(replies: dict[int, Reply]) -> list[dict[str, Any]]:
        return [asdict(replace(replies[i], seconds=0.0)) for i in range(len(replies))]

    assert untimed(theirs) == untimed(ours)
    assert len({reply.stopped_at for reply in theirs.values()}) >= 3


def test_a_policy_serves_where_its_tokenizer_is(
    loaded: OpenAiEngine,
    served: OpenAiEngine,
    vllm: VllmServer,
    workload: Workload,
    tmp_path: Path,
) -> None:
    async def ask(policy: Policy, **options: Any) -> Reply:
        async with connect(policy, [vllm.base_url], model=NAME, **options) as server:
            assert server.remarks == ()
            return await server.answer(workload.questions[0])

    policy = _policy(served, tmp_path)
    expected = dict(
        serve(loaded, make_requests(workload.questions[:1], policy), server_plan(policy), policy)
    )
    reply = asyncio.run(ask(policy, tokenizer="server"))
    assert (reply.answer, reply.budget) == (expected[0].answer, expected[0].budget)
    with pytest.raises(PolicyError, match="use --engine openai with --tokenizer server"):
        asyncio.run(ask(policy))
    with pytest.raises(PolicyError, match="name the model's with --tokenizer NAME"):
        asyncio.run(ask(_policy(loaded, tmp_path), tokenizer="server"))
