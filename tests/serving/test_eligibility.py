"""Which requests a policy covers, and the word that is given where it does not."""

from __future__ import annotations

from typing import Any

import pytest

from stopadvisor.engines.sampling import Sampling
from stopadvisor.ground.constants import PROMPT_TEMPLATES
from stopadvisor.policy.requests import policy_plan
from stopadvisor.serving.eligibility import _FIELDS, Coverage, CoveredRequest, Reason
from tests.policy_content import (
    GIVES_UP,
    SERVED_RUNGS,
    example_content,
    ladder_content,
    policy_from,
)

TEXT = PROMPT_TEMPLATES["numeric"].replace("{question}", "What is 2 + 2?")
MESSAGE = {"role": "user", "content": TEXT}
SAMPLING = Sampling(temperature=0.6, top_k=20, top_p=0.95)
MOST = 4096 + 2 + 512
"""Thinking, closer and visible answer of the example."""


def coverage(
    sampling: Sampling = SAMPLING,
    any_text: bool = False,
    context: int | None = None,
    **changes: Any,
) -> Coverage:
    policy = policy_from(example_content(**changes))
    return Coverage.of(
        policy,
        policy_plan(policy, at_server=True),
        names=["tiny", "alias"],
        sampling=sampling,
        closer_tokens=2,
        any_text=any_text,
        context=context,
    )


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [MESSAGE]} | fields


def reason(found: CoveredRequest | Reason) -> str:
    return "covered" if isinstance(found, CoveredRequest) else found


def test_a_covered_request_is_the_calibrated_one() -> None:
    found = coverage().check(
        asked(stream=True, stream_options={"include_usage": True}, seed=7), task=None
    )
    assert isinstance(found, CoveredRequest)
    assert (found.stream, found.include_usage, found.seed) == (True, True, 7)
    assert found.request.prompt.messages == (MESSAGE,)
    assert found.request.task == "numeric"
    plain = coverage().check(asked(model="alias", max_tokens=MOST), task="numeric")
    assert isinstance(plain, CoveredRequest)
    assert (plain.stream, plain.include_usage, plain.seed) == (False, False, None)
    assert (found.max_tokens, plain.max_tokens) == (None, MOST)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "tools": None, "tool_choice": "none", "response_format": {"type": "text"}},
        {"logprobs": False, "logit_bias": {}, "frequency_penalty": 0, "stop": []},
        {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "repetition_penalty": 1},
        {"max_tokens": MOST, "max_completion_tokens": MOST + 1},
        {"chat_template_kwargs": {"enable_thinking": True}, "user": "u1", "metadata": {"a": "b"}},
        {"temperature": None, "stop": None, "a_field_of_tomorrow": None},
        {"best_of": 1, "use_beam_search": False, "top_logprobs": 0, "stop_token_ids": []},
        {"presence_penalty": 0, "min_tokens": 0, "ignore_eos": False, "store": False},
        {"presence_penalty": 0.0, "frequency_penalty": 0.0, "include_reasoning": True},
        {"add_generation_prompt": True, "continue_final_message": False},
        {"stream": True, "stream_options": {"include_usage": None}},
    ],
)
def test_fields_that_change_nothing(fields: dict[str, Any]) -> None:
    assert reason(coverage().check(asked(**fields), task=None)) == "covered"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"stream": ""}, "field"),
        ({"stream": []}, "field"),
        ({"stream_options": {"include_usage": True}}, "field"),
        ({"stream": False, "stream_options": {"include_usage": False}}, "field"),
        ({"stream": True, "stream_options": ""}, "field"),
        ({"stream": True, "stream_options": False}, "field"),
        ({"max_tokens": 5001}, "max-tokens"),
        ({"max_completion_tokens": 2**70}, "max-tokens"),
        ({"seed": 2**63}, "field"),
        ({"seed": -(2**64)}, "field"),
        ({"tools": []}, "tools"),
        ({"tool_choice": "auto"}, "tools"),
        ({"parallel_tool_calls": "abc"}, "tools"),
        ({"stop": ""}, "stop"),
        ({"stop_token_ids": {}}, "stop"),
        ({"logit_bias": []}, "logit-bias"),
        ({"user": 5}, "field"),
        ({"metadata": 7}, "field"),
        ({"top_k": 3.5}, "sampling"),
        ({"ignore_eos": None}, "stop"),
        ({"include_reasoning": None}, "thinking"),
        ({"priority": None}, "field"),
    ],
)
def test_what_vllm_refuses_is_left_to_it(fields: dict[str, Any], expected: str) -> None:
    """Else a client would get a 200 for a request that the server calls wrong."""
    greedy = coverage(Sampling(temperature=0.0), context=5000)
    assert reason(greedy.check(asked(**fields), task=None)) == expected


def test_a_limit_up_to_the_context_is_covered() -> None:
    greedy = coverage(Sampling(temperature=0.0), context=5000)
    for fields in ({"max_tokens": 5000}, {"seed": 2**63 - 1}, {"seed": -(2**63)}):
        assert reason(greedy.check(asked(**fields), task=None)) == "covered"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model": "tiny-lora"}, "model"),
        ({"model": None}, "model"),
        ({"n": 2}, "n"),
        ({"n": True}, "n"),
        ({"use_beam_search": True}, "n"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tools"),
        ({"response_format": {"type": "json_object"}}, "format"),
        ({"structured_outputs": {"json": {}}}, "format"),
        ({"logprobs": True}, "logprobs"),
        ({"logit_bias": {"3": 1}}, "logit-bias"),
        ({"presence_penalty": 0.1}, "penalty"),
        ({"stop": ["\n"]}, "stop"),
        ({"ignore_eos": True}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "system", "content": "Be brief."}, MESSAGE]}, "messages"),
        ({"messages": [MESSAGE, MESSAGE, MESSAGE]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages"),
        ({"messages": [MESSAGE | {"name": "me"}]}, "messages"),
        ({"messages": [MESSAGE | {"role": "assistant"}]}, "messages"),
        ({"messages": [{"role": "user", "content": TEXT + "\ud800"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "What is 2 + 2?"}]}, "template"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "thinking"),
        ({"chat_template_kwargs": {}}, "template"),
        ({"chat_template_kwargs": "off"}, "template"),
        ({"continue_final_message": True}, "template"),
        ({"reasoning_effort": "low"}, "thinking"),
        ({"thinking_token_budget": 100}, "thinking"),
        ({"include_reasoning": False}, "thinking"),
        ({"temperature": 0.7}, "sampling"),
        ({"temperature": "0.6"}, "sampling"),
        ({"top_p": 1}, "sampling"),
        ({"top_k": -1}, "sampling"),
        ({"repetition_penalty": 1.1}, "sampling"),
        ({"max_tokens": MOST - 1}, "max-tokens"),
        ({"max_completion_tokens": 16}, "max-tokens"),
        ({"max_tokens": float(MOST)}, "max-tokens"),
        ({"stream": "yes"}, "field"),
        ({"stream_options": {"continuous_usage_stats": True}}, "field"),
        ({"stream_options": {"include_usage": 1}}, "field"),
        ({"stream_options": [1]}, "field"),
        ({"seed": 0.5}, "field"),
        ({"chat_template": "{{ messages }}"}, "field"),
        ({"priority": 3}, "field"),
    ],
)
def test_everything_else_is_passed_on_with_a_reason(fields: dict[str, Any], expected: str) -> None:
    assert reason(coverage().check(asked(**fields), task=None)) == expected


def test_every_field_has_values_that_are_not_covered() -> None:
    """One away from each neutral value, and of another type."""
    numbers = [-2, -0.1, 1e-9, 0.1, 0.5, 2, 3]
    others: list[Any] = [*numbers, True, False, "x", ["x"], {"x": 1}]
    own = coverage()
    for name in _FIELDS:
        found = {reason(own.check(asked(**{name: value}), task=None)) for value in others}
        assert found != {"covered"}, name
        refused = [
            value
            for value in numbers
            if reason(own.check(asked(**{name: value}), task=None)) == "covered"
        ]
        assert not refused, f"{name} counts {refused} as neutral"


@pytest.mark.parametrize(
    ("own", "task", "expected"),
    [
        ("numeric", "choice", "task"),
        ("mixed", None, "task"),
        ("mixed", "mixed", "task"),
        ("mixed", "poetry", "task"),
        ("mixed", "numeric", "covered"),
    ],
)
def test_the_task_is_known(own: str, task: str | None, expected: str) -> None:
    templates = PROMPT_TEMPLATES if own == "mixed" else PROMPT_TEMPLATES["numeric"]
    found = coverage(task=own, prompt_template=templates).check(asked(), task=task)
    assert reason(found) == expected


def test_a_template_goes_by_task() -> None:
    both = coverage(task="mixed", prompt_template=PROMPT_TEMPLATES)
    assert reason(both.check(asked(), task="choice")) == "template"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 + 2", "template"),
        ("Q: A:", "template"),
        ("Q:  A:", "template"),  # no question at all
        ("Q: 2 B:", "template"),
        ("Q: 2 A:", "covered"),
    ],
)
def test_text_around_the_question(text: str, expected: str) -> None:
    """Where the workload held messages, a policy cannot know what stands around a question."""
    template = "Q: {question} A:"
    body = asked(messages=[{"role": "user", "content": text}])
    assert reason(coverage(any_text=True, prompt_template=template).check(body, task=None)) == (
        "covered"
    )
    assert reason(coverage(prompt_template=template).check(body, task=None)) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"reasoning_effort": "high", "user": "me", "n": 1}, "covered"),
        ({"model": "tiny"}, "model"),
        ({"reasoning_effort": "low"}, "thinking"),
        ({"n": 2}, "n"),
        ({"temperature": 0.7}, "sampling"),
        ({"top_k": -1}, "sampling"),
        ({"seed": 1}, "sampling"),
        ({"max_tokens": 1000}, "max-tokens"),
        ({"chat_template_kwargs": {"x": 1}}, "template"),
    ],
)
def test_a_ladder_covers_what_is_asked_as_its_reference_was(
    fields: dict[str, Any], expected: str
) -> None:
    policy = policy_from(ladder_content(ladder={"rungs": GIVES_UP["rungs"]}))  # the last of three
    body = {"model": "big", "messages": [{"role": "user", "content": "2 + 2?"}]} | fields
    assert reason(Coverage.of_ladder(policy).check(body, task=None)) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"chat_template_kwargs": {"x": 1}, "max_tokens": 2000}, "covered"),
        ({"chat_template_kwargs": {}}, "template"),
        ({"max_tokens": 1999}, "max-tokens"),
        ({"temperature": 0.5}, "covered"),
        ({"temperature": 1.0}, "sampling"),
    ],
)
def test_a_ladders_reference_may_have_terms_of_its_own(
    fields: dict[str, Any], expected: str
) -> None:
    own = {"chat_template_kwargs": {"x": 1}, "max_tokens": 2000, "temperature": 0.5}
    *cheap, reference = GIVES_UP["rungs"]
    policy = policy_from(ladder_content(ladder={"rungs": [*cheap, reference | own]}))
    body = {"model": "big", "messages": [{"role": "user", "content": "2 + 2?"}]} | fields
    assert reason(Coverage.of_ladder(policy).check(body, task=None)) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 0, "top_p": 0.5, "top_k": 50}, "covered"),
        ({"temperature": 0.0, "min_p": 0.1}, "covered"),
        ({"top_p": 1, "top_k": -1, "min_p": 1}, "covered"),
        ({"min_p": 0}, "covered"),
        ({"top_p": 0}, "sampling"),
        ({"top_p": 1.01}, "sampling"),
        ({"min_p": 1.01}, "sampling"),
        ({"min_p": -0.01}, "sampling"),
        ({"top_k": -2}, "sampling"),
        ({"top_p": "0.5"}, "sampling"),
        ({"min_p": True}, "sampling"),
        ({"temperature": 1}, "sampling"),
        ({"repetition_penalty": 1.2}, "sampling"),
    ],
)
def test_of_a_greedy_policy_only_what_decides_is_compared(
    fields: dict[str, Any], expected: str
) -> None:
    greedy = coverage(Sampling(temperature=0.0))
    assert reason(greedy.check(asked(**fields), task=None)) == expected


@pytest.mark.parametrize(
    ("top_k", "expected"), [(0, "covered"), (-1, "covered"), (50, "sampling"), (False, "sampling")]
)
def test_every_token_may_be_drawn_where_top_k_is_0_or_minus_1(top_k: int, expected: str) -> None:
    everything = coverage(Sampling(temperature=0.6, top_k=0))
    assert reason(everything.check(asked(top_k=top_k), task=None)) == expected


def test_a_seed_changes_no_reply_of_a_greedy_reference() -> None:
    small, large = SERVED_RUNGS
    policy = policy_from(ladder_content(ladder={"rungs": [small, large | {"temperature": 0.0}]}))
    body = {"model": "big", "messages": [{"role": "user", "content": "2 + 2?"}], "seed": 1}
    assert reason(Coverage.of_ladder(policy).check(body, task=None)) == "covered"
