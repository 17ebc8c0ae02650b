"""What is read of vLLM's settings, and how its engine is asked; vLLM's modules are played here."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stopadvisor.engines.trace_context import TRACE_CONTEXT
from stopadvisor.serving.vllm.adapter import EngineFacts, VllmEngine, facts_of
from tests.serving.vllm.fake_engine import FACTS


def play(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    """Put a module of vLLM in place."""
    *parents, _ = name.split(".")
    for k in range(len(parents)):
        parent = ".".join(parents[: k + 1])
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    module = ModuleType(name)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize(
    ("most", "requested", "limit"),
    [
        ({}, None, 1500),  # what the context leaves
        ({"max_tokens": 100}, None, 100),
        ({"max_tokens": 100}, 200, 200),  # a default is no limit
        ({"max_output": 50}, None, 50),
        ({"max_output": 50}, 20, 20),
        ({"max_output": 50}, 200, 50),
    ],
)
def test_a_request_decodes_no_more_than_vllm_would(
    most: dict[str, int], requested: int | None, limit: int
) -> None:
    default = {name: value for name, value in most.items() if name == "max_tokens"}
    facts = replace(FACTS, sampling=default, max_output=most.get("max_output"))
    assert facts.limit(36, requested) == limit


def read(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> EngineFacts:
    """What is read where these settings are given."""
    play(monkeypatch, "vllm.renderers.chat_utils", load_chat_template=lambda given: given)
    model = {
        **dict.fromkeys(("tokenizer", "quantization", "override_generation_config")),
        "model": "folder",
        "max_model_len": 99,
        "dtype": "torch.bfloat16",
        "max_logprobs": 5,
        "generation_config": "auto",
    }
    given = {
        **dict.fromkeys(("served_model_name", "chat_template", "default_chat_template_kwargs")),
        "model": "folder",
        "api_server_count": None,
    }
    own = {name: changes.pop(name) for name in list(changes) if name in model}
    asked = {name: changes.pop(name) for name in list(changes) if name in given}
    sampling, scheduler = changes.pop("sampling", {}), changes.pop("scheduler", "fcfs")
    assert not changes
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            **model | own, get_diff_sampling_param=lambda: sampling, get_vocab_size=lambda: 559
        ),
        structured_outputs_config=SimpleNamespace(reasoning_parser="qwen3"),
        cache_config=SimpleNamespace(enable_prefix_caching=True),
        scheduler_config=SimpleNamespace(policy=scheduler),
        parallel_config=SimpleNamespace(data_parallel_size=1),
    )
    return facts_of(SimpleNamespace(vllm_config=config), Namespace(**given | asked), "0.32.0")


def test_what_was_not_set_at_start_has_vllms_default(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = read(monkeypatch)
    assert (plain.names, plain.api_servers, plain.by_priority) == (("folder",), 1, False)
    assert (plain.dtype, plain.context, plain.vocabulary) == ("bfloat16", 99, 559)
    assert (plain.chat_template_kwargs, plain.max_output) == (None, None)
    given: dict[str, Any] = {
        "served_model_name": ["one", "two"],
        "api_server_count": 3,
        "default_chat_template_kwargs": {"enable_thinking": True},
    }
    set_ = read(monkeypatch, scheduler="priority", **given)
    assert (set_.names, set_.api_servers, set_.by_priority) == (("one", "two"), 3, True)
    assert set_.chat_template_kwargs == {"enable_thinking": True}


@pytest.mark.parametrize(
    ("generation", "overrides", "most"),
    [
        ("auto", None, None),
        ("vllm", None, None),
        ("auto", {"max_new_tokens": 70}, 70),
        ("folder", None, 40),  # a server's own limits every request
    ],
)
def test_a_default_number_of_tokens_limits_requests_only_from_a_config_of_the_servers_own(
    generation: str,
    overrides: dict[str, int] | None,
    most: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes = {"generation_config": generation, "override_generation_config": overrides}
    facts = read(monkeypatch, sampling={"max_tokens": 40}, **changes)
    assert (facts.max_output, facts.sampling) == (most, {"max_tokens": 40})


def test_outputs_are_lists_of_new_ids_or_one_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = SimpleNamespace(FINAL_ONLY="final", DELTA="delta")
    play(monkeypatch, "vllm.inputs", tokens_input=lambda ids: {"ids": ids})
    play(monkeypatch, "vllm.sampling_params", RequestOutputKind=kinds, SamplingParams=dict)
    sent: list[Any] = []
    client = SimpleNamespace(generate=lambda *given, **more: sent.append((*given, more)))
    engine = VllmEngine(client)
    engine.generate((1, 2), {"max_tokens": 3}, "a", final=True, priority=-1)
    context = TRACE_CONTEXT.set({"traceparent": "00-1"})
    engine.generate((1, 2), {"max_tokens": 3}, "b", final=False, priority=0)
    TRACE_CONTEXT.reset(context)
    (prompt, parameters, name, more), (_, later, _, traced) = sent
    assert (prompt, name) == ({"ids": [1, 2]}, "a")
    assert (parameters["output_kind"], later["output_kind"]) == ("final", "delta")
    assert (parameters["flat_logprobs"], parameters["detokenize"]) == (True, False)
    assert more == {"trace_headers": None, "priority": -1}
    assert traced == {"trace_headers": {"traceparent": "00-1"}, "priority": 0}
