"""Policies held against the engine before it serves: what is refused, and in which words."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.engines import chat as chat_module
from stopadvisor.engines.chat import Marker
from stopadvisor.engines.sampling import Sampling
from stopadvisor.ground.errors import ModelError, PolicyError
from stopadvisor.serving.serve_settings import AuditSettings, ServeSettings
from stopadvisor.serving.vllm.binding import bind_policies
from tests.policy_content import family_content
from tests.serving.vllm.fake_engine import FACTS, FakeEngine, bound_at, loaded, policy_of


def test_a_policy_that_fits() -> None:
    bound = bound_at(FakeEngine())
    assert bound.model.logprobs is None
    assert bound.coverage.most_tokens == 400 + 1 + 64
    # Of the example's own engine, which is another.
    assert all(
        "run `stopadvisor verify` before you rely on it" in remark for remark in bound.remarks
    )


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"dtype": "bfloat16"}, "calibrated with dtype 'float32', got 'bfloat16'"),
        ({"quantization": "fp8"}, "calibrated with quantization None, got 'fp8'"),
        ({"context": 465}, "take 465 tokens, got a context of 465 (--max-model-len)"),
        ({"chat_template": "{{ 1 }}"}, "own chat template, got another by --chat-template"),
        (
            {"chat_template_kwargs": {"enable_thinking": False}},
            "chat_template_kwargs {}, got {'enable_thinking': False} by --default-chat-template",
        ),
        (
            {"sampling": {"temperature": 0.7}},
            "{'temperature': 0.0}, and a request that names nothing gets {'temperature': 0.7} "
            "here: add --override-generation-config '{\"temperature\": 0.0}'",
        ),
        ({"sampling": {}}, "gets {'temperature': \"vLLM's default\"} here: add --override"),
        (
            {"sampling": {"temperature": 0.0, "repetition_penalty": 1.1}},
            "calibrated with {'repetition_penalty': 1.0}, and",
        ),
        (
            {"sampling": {"temperature": 0.0, "frequency_penalty": 0.1}},
            "calibrated with {'frequency_penalty': 0.0}, and",
        ),
        ({"model": "/elsewhere/other"}, "calibrated with model 'tiny-reasoner', got"),
    ],
)
def test_what_differs_and_matters_is_refused(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError) as refused:
        bound_at(FakeEngine(), **facts)
    assert message in str(refused.value)
    assert str(refused.value).startswith("policy.joblib: ")


def test_what_calibration_did_not_know_of_its_engine_is_not_compared() -> None:
    engine = policy_of().content["engine"] | {"dtype": None}
    bound_at(FakeEngine(), policy_of(engine=engine), dtype="bfloat16", quantization="fp8")


def test_one_token_more_than_thinking_and_answer_take_is_room_enough() -> None:
    assert bound_at(FakeEngine(), context=466).longest_prompt == 1


def test_a_probe_at_the_end_of_thinking_has_room() -> None:
    """Where the visible answer is short, the probe's own tokens are the most."""
    bound = bound_at(
        FakeEngine(), policy_of(probe=policy_of().content["probe"] | {"answer_cap": 1})
    )
    assert bound.longest_prompt == FACTS.context - (400 + len(bound.model.suffix) + 16)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_forced_answer_in_open_thinking_also_ends_where_that_is_closed(
    is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the last of the tokens that close it."""
    chat = bound_at(FakeEngine()).model.chat
    other, *_ = chat.encode("so")
    closer = Marker("so so" + chat.closer.text, (other, other, *chat.closer.ids))
    monkeypatch.setattr(chat_module, "find_markers", lambda *_: (chat.opener, closer))
    probe = policy_of().content["probe"] | {"closer": closer.to_json(), "open_cue": is_open}
    ends = bound_at(FakeEngine(), policy_of(probe=probe)).model.answer_ends
    assert (closer.ids[-1] in ends) == is_open
    assert other not in ends


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer_sha256": "0" * 64}, "tokenizer hash"),
        ({"template_sha256": "0" * 64}, "chat template hash"),
        ({"revision": "sha256:" + "0" * 64}, "model revision"),
    ],
)
def test_another_model_is_refused(changes: dict[str, str], message: str) -> None:
    policy = policy_of(model={**policy_of().content["model"], **changes})
    with pytest.raises(PolicyError, match=message):
        bound_at(FakeEngine(), policy)


def test_how_the_likeliest_token_is_cut_off_changes_nothing() -> None:
    bound_at(FakeEngine(), sampling={"temperature": 0.0, "top_p": 0.5, "top_k": 20})


def test_what_a_policy_says_of_its_draws_decides() -> None:
    """Not what the model's settings would make of it here."""
    sampled = Sampling(temperature=0.6, top_k=20, top_p=0.95)
    drawn = asdict(sampled)
    sampling = {"greedy": False, "temperature": None, "seed": 5, "drawn": drawn}
    policy = policy_of(sampling=sampling)
    bound = bound_at(FakeEngine(), policy, sampling={**drawn, "max_tokens": 512})
    assert bound.coverage.sampling == drawn
    with pytest.raises(PolicyError, match=r"calibrated with \{'temperature': 0.6, 'top_k': 20, "):
        bound_at(FakeEngine(), policy)


def test_thinking_is_reasoning_in_every_reply() -> None:
    with pytest.raises(ModelError, match="add --reasoning-parser NAME"):
        bound_at(FakeEngine(), reasoning_parser="")


def test_copies_with_caches_of_their_own_are_refused() -> None:
    with pytest.raises(ModelError, match="expected --data-parallel-size 1, got 2"):
        bound_at(FakeEngine(), replicas=2)


def test_an_audit_log_has_one_writer() -> None:
    settings = ServeSettings(Path("policies"), audit=AuditSettings(0.1, Path("audits")))
    policies = [(Path("own.joblib"), policy_of())]
    for servers, allowed in ((1, settings), (2, replace(settings, audit=None))):
        facts = replace(FACTS, api_servers=servers)
        assert bind_policies(policies, facts, loaded(), FakeEngine(), allowed)
    with pytest.raises(ModelError, match="expected --api-server-count 1 with --audit, got 2"):
        bind_policies(policies, facts, loaded(), FakeEngine(), settings)


def test_what_costs_more_is_remarked() -> None:
    plain, dear = bound_at(FakeEngine()), bound_at(
        FakeEngine(), prefix_caching=False, by_priority=False
    )  # fmt: skip
    new = [remark.split(":")[0] for remark in dear.remarks if remark not in plain.remarks]
    assert new == [
        "prefix caching is off",
        "requests are not scheduled by priority (--scheduling-policy priority)",
    ]


@pytest.mark.parametrize(
    ("family", "source", "limit", "expected"),
    [
        ("run-stability", "full", 20, None),
        ("confidence", "full", 20, 0),
        ("entropy", "top-k:20", 20, 20),
        ("entropy", "top-k:5", -1, 5),
        ("entropy", "full", -1, -1),
        ("entropy", "full", FACTS.vocabulary, -1),
        ("entropy", "full", 0, "entropy source 'full', got 'top-k:0'"),
        ("entropy", "full", FACTS.vocabulary - 1, f"'full', got 'top-k:{FACTS.vocabulary - 1}'"),
        ("entropy", "full", 20, "entropy source 'full', got 'top-k:20'"),
        ("entropy", "top-k:20", 5, "entropy source 'top-k:20', got 'top-k:5'"),
    ],
)
def test_a_probe_asks_for_what_the_rule_reads(
    family: str, source: str, limit: int, expected: Any
) -> None:
    policy = policy_of(family_content(family), entropy_source=source)
    if isinstance(expected, str):
        with pytest.raises(PolicyError, match=expected):
            bound_at(FakeEngine(), policy, max_logprobs=limit)
    else:
        model = bound_at(FakeEngine(), policy, max_logprobs=limit).model
        assert model.logprobs == expected
        assert (model.likeliest is not None) == (expected == -1)


def test_a_whole_vocabulary_is_asked_for_where_a_part_tells_too_little() -> None:
    policy = policy_of(family_content("entropy"), entropy_source="full")
    bound = bound_at(FakeEngine(), policy, max_logprobs=-1, vocabulary=100)
    assert (bound.model.logprobs, bound.model.likeliest) == (-1, None)


def test_of_a_folder_the_one_for_this_model_serves() -> None:
    own = policy_of()
    other = policy_of(model={**own.content["model"], "revision": "sha256:" + "0" * 64})
    engine, settings = FakeEngine(), ServeSettings(Path("policies"))
    named = [(Path("other.joblib"), other), (Path("own.joblib"), own)]
    (bound,) = bind_policies(named, FACTS, loaded(), engine, settings)
    assert bound.policy.digest == own.digest
    with pytest.raises(PolicyError, match=r"^other\.joblib: .* revision"):
        bind_policies(named[:1], FACTS, loaded(), engine, settings)
    for second in (own, policy_of(task="mixed")):
        with pytest.raises(PolicyError, match=r"expected one policy for each model and task"):
            bind_policies(
                [(Path("own"), own), (Path("b"), second)], FACTS, loaded(), engine, settings
            )
