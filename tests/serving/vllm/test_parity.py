"""The plugin's whole way on the tiny real model: stops, answers and thinking of the local engine.

The engine's client is played by transformers here; `tests/integration/test_plugin.py` asks vLLM.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stopadvisor.policy.frozen import load_policy
from stopadvisor.policy.requests import make_requests, policy_plan
from stopadvisor.serving.responder import forced_content
from stopadvisor.workload.questions import read_workload
from tests.engines.fake_server import TINY
from tests.serving.vllm.fake_engine import FACTS, FlatLogprobs, route_at
from tests.serving.vllm.test_route import Client

ROOT = TINY.parent.parent
N_QUESTIONS = 2


@cache
def tiny_model() -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)


class ModelClient:
    """Greedy decoding, one token at a time, with the log-probabilities that are asked for."""

    def __init__(self) -> None:
        self.model = tiny_model()
        known = inspect.signature(self.model.forward).parameters
        self.cache_name = "cache" if "cache" in known else "past_key_values"
        """The latter before transformers 5.24."""
        self.asked: list[int] = []
        """Log-probabilities of each token of a probe."""
        self.ended: set[str] = set()
        """Requests that were aborted."""

    def _step(self, ids: list[int], cache: Any) -> tuple[int, NDArray[np.float32], Any]:
        import torch

        with torch.inference_mode():
            tokens = torch.tensor([ids])
            out = self.model(input_ids=tokens, use_cache=True, **{self.cache_name: cache})
            logprobs = torch.log_softmax(out.logits[0, -1], dim=-1).numpy()
        return int(logprobs.argmax()), logprobs, out.past_key_values

    async def generate(
        self, ids: Any, parameters: Mapping[str, Any], name: str, *, final: bool, priority: int
    ) -> AsyncGenerator[Any, None]:
        assert parameters["temperature"] == 0.0
        k, most = parameters.get("logprobs"), parameters["max_tokens"]
        ids, cache = list(ids), None
        rows = None if k is None else FlatLogprobs()
        brought: list[int] = []
        for number in range(1, most + 1):
            token, logprobs, cache = self._step(ids, cache)
            ids = [token]
            brought.append(token)
            if k is not None and rows is not None:
                self.asked.append(k)
                ranked = np.argsort(-logprobs).tolist()
                named = [token, *(ranked if k < 0 else ranked[:k])]
                rows.append(named, logprobs[named].tolist())
            over = token in parameters["stop_token_ids"] or number == most
            reason = "stop" if over else None
            if name in self.ended:
                reason = "abort"
            if reason is not None or not final:
                output = SimpleNamespace(token_ids=brought, logprobs=rows, finish_reason=reason)
                yield SimpleNamespace(
                    outputs=[output], num_cached_tokens=0, finished=reason is not None
                )
                brought, rows = [], None if k is None else FlatLogprobs()
            if reason is not None:
                return
            await asyncio.sleep(0)

    async def abort(self, name: str) -> None:
        self.ended.add(name)

    def wait(self, name: str, tokens: int) -> None:
        """Bring each token at once all the same."""


@pytest.mark.integration
@pytest.mark.parametrize(("workload", "stream"), [("arithmetic", True), ("choice", False)])
def test_replies_are_those_of_the_local_engine(workload: str, stream: bool) -> None:
    from stopadvisor.engines import hf

    policy = load_policy(ROOT / "policies" / f"{workload}.joblib")
    questions = read_workload(ROOT / "samples" / f"{workload}.jsonl").questions
    requests = make_requests(questions[:N_QUESTIONS], policy)
    local = hf.load_engine(str(TINY), device="cpu", dtype="float32")
    expected = dict(local.serve(requests, policy_plan(policy), policy, batch_size=N_QUESTIONS))

    client: Any = ModelClient()
    route = route_at(client, policy, max_logprobs=-1)
    (bound,) = route.policies
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}

    async def ask(number: int) -> None:
        reader = Client(route)
        messages = [dict(message) for message in requests[number].prompt.messages]
        await reader.ask({"model": FACTS.names[0], "messages": messages} | options)
        reply = expected[number]
        assert reply.text is not None
        stopped = reply.finish == "stopped"
        assert reader.reply.text("reasoning") == reply.thinking
        assert reader.reply.text("content") == (
            forced_content(bound.model.plan.cue, reply.text) if stopped else reply.text
        )
        own = reader.reply.usage["stopadvisor"]
        assert (own["budget"], own["probes"]) == (reply.budget, reply.n_probes)
        assert own["probe_tokens"] == reply.probe_tokens

    async def all_of_them() -> None:
        await asyncio.gather(*map(ask, range(len(requests))))

    asyncio.run(all_of_them())
    assert client.asked.count(-1) < len(client.asked) / 4, "few tokens decide most probes"
    budgets = {reply.budget for reply in expected.values()}
    assert None in budgets or len(budgets) > 1, "stops at several places"
