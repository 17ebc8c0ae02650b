"""A real server behind a gateway that knows text only: probed, certified for its kind, served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from stopadvisor.collection.collect import make_prompts
from stopadvisor.engines import openai
from stopadvisor.engines.openai.engine import OpenAiEngine
from stopadvisor.workload.questions import read_workload
from tests.integration.proxy import FaultProxy
from tests.integration.server import NAME, ROOT, VllmServer
from tests.integration.test_parity import PLAN

pytestmark = [pytest.mark.integration, pytest.mark.vllm, pytest.mark.slow]


OPENAI = {"model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop"}
"""Fields that OpenAI's own endpoint knows."""


def knows_text_only(path: str, body: bytes) -> bool:
    """Refuse ids, and the fields that only vLLM and its kin have."""
    if not path.endswith("/completions"):
        return not path.endswith("/models")
    asked = json.loads(body)
    return not isinstance(asked["prompt"], str) or bool(set(asked) - OPENAI)


@pytest.fixture
def by_text(vllm: VllmServer) -> Iterator[OpenAiEngine]:
    with FaultProxy(vllm.port, unknown=knows_text_only) as gateway:
        engine = openai.load_engine(NAME, [gateway.base_url], concurrency=8)
        yield engine
        engine.close()


def test_the_same_traces_and_answers_as_on_ids(by_text: OpenAiEngine, vllm: VllmServer) -> None:
    workload = read_workload(ROOT / "samples" / "arithmetic.jsonl")
    prompts = make_prompts(workload.questions[:20], None)
    assert by_text.served_model.can.way == "completions-text"
    found = by_text.probe(prompts, replace(PLAN, entropy="none"))
    on_ids = openai.load_engine(NAME, [vllm.base_url], concurrency=8)
    try:
        expected = on_ids.probe(prompts, replace(PLAN, entropy="none"))
    finally:
        on_ids.close()
    # This tokenizer cuts text in one way only, so nothing is lost on the way.
    assert found == expected


def test_preflight_passes(by_text: OpenAiEngine) -> None:
    workload = read_workload(ROOT / "samples" / "arithmetic.jsonl")
    (prompt,) = make_prompts(workload.questions[:1], None)
    found = {f.name: f.status for f in by_text.findings(prompt, replace(PLAN, entropy="none"))}
    assert found == {
        "server-obeys": "pass",
        "resumes": "pass",
        "server-caches": "pass",
        "top-k": "pass",
    }
