"""Models and engines that a policy refuses to serve with, or only remarks on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.frozen import load_policy, policy_source, save_policy
from stopadvisor.policy.requests import policy_plan
from stopadvisor.policy.session import Session
from tests.policy_content import (
    IDENTITY,
    anywhere_content,
    example_content,
    example_contents,
    family_content,
    full_budget_content,
    policy_from,
    text_content,
)

PLAN = {
    "cue": example_content()["probe"]["cue"]["text"],
    "cap": 48,
    "max_think": 4096,
    "prompt_template": example_content()["prompt_template"],
    "sampling": {"greedy": False, "temperature": 0.6},
    "answer_cap": 512,
}


def check(content: dict[str, Any] | None = None, source: str = "full", **changes: Any) -> list[str]:
    plan = PLAN | {key: changes.pop(key) for key in list(changes) if key in PLAN}
    policy = policy_from(content or example_content())
    return policy.check_source(IDENTITY | changes, source, **plan)


def test_its_own_source_is_fine() -> None:
    assert check() == []
    assert policy_from(example_content()).check_source(IDENTITY, "full") == []
    text = IDENTITY["think_close"]["text"]
    assert check(think_close=text) == check(think_close={"text": text, "ids": None}) == []
    source = policy_source(IDENTITY)
    assert check(example_content(**source)) == []


def test_each_version_that_probed_the_run_is_its_own() -> None:
    engine = {**policy_source(IDENTITY)["engine"], "version": "5.19.0, 5.23.0"}
    both = example_content(engine=engine)
    assert [check(both, engine_version=version) for version in ("5.19.0", "5.23.0")] == [[], []]
    (remark,) = check(both, engine_version="6.0")
    assert "'6.0' here, was '5.19.0, 5.23.0' at calibration" in remark


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": "other", "model_revision": "abc"}, "model revision"),
        ({"model_revision": "sha256:" + "1" * 64}, "model revision"),
        ({"model": "other", "model_revision": None}, "model 'tiny-reasoner', got 'other'"),
        ({"tokenizer_sha256": "1" * 64}, "tokenizer hash"),
        ({"template_sha256": "1" * 64}, "chat template hash"),
        ({"think_close": {"text": "</t>", "ids": [10, 4, 4]}}, "thinking closer (ids)"),
        ({"think_close": {"text": "</t>", "ids": None}}, "thinking closer"),
        ({"think_close": "</t>"}, "thinking closer"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        ({"source": "top-k:20"}, "entropy source 'full', got 'top-k:20'"),
        ({"cue": "\n\nThe answer is"}, "answer cue"),
        ({"cap": 32}, "answer cap 48, got 32"),
        ({"max_think": 1024}, "thinking cap (max_think) 4096, got 1024"),
        ({"prompt_template": "{question}"}, "prompt template"),
        ({"sampling": {"greedy": True, "temperature": None}}, "sampling (greedy) False, got True"),
        ({"sampling": {"greedy": False, "temperature": 1.9}}, "(temperature) 0.6, got 1.9"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_another_source_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(PolicyError) as caught:
        check(**changes)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"engine": "openai"}, "the engine is 'openai' here, was 'hf'"),
        ({"engine_version": "6.0"}, "the engine's version"),
        ({"dtype": "bfloat16"}, "dtype is 'bfloat16' here"),
        ({"device": "cuda"}, "the device is 'cuda' here"),
        ({"quantization": "awq"}, "quantisation is 'awq' here, was None"),
        ({"attention": "eager"}, "the attention implementation"),
        ({"model": "renamed"}, "its content is the same"),
        ({"model_revision": None}, "revision is unknown"),
        ({"tokenizer_sha256": None}, "tokenizer's hash is unknown"),
        ({"stop_ids": [2]}, "answers end at the tokens [2] here, at [1, 2] at calibration"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_other_circumstances_are_remarked_on(changes: dict[str, Any], expected: str) -> None:
    (remark,) = check(**changes)
    assert expected in remark


@pytest.mark.parametrize("stop_ids", [None, [2, 1]], ids=["unknown", "in another order"])
def test_tokens_that_end_an_answer_are_compared_as_a_set(stop_ids: list[int] | None) -> None:
    assert check(stop_ids=stop_ids) == []
    content = example_content()
    content["probe"]["stop_ids"] = None
    assert check(content, stop_ids=[9]) == []


def test_visible_answers_are_certified_under_their_cap() -> None:
    content = example_content()
    written = content["certificate"] | {"on_stop": "answer", "answer_cap": 512}
    content = content | {"on_stop": "answer", "certificate": written}
    assert check(content) == []
    with pytest.raises(PolicyError, match="answer_cap\\) 512, got 32"):
        check(content, answer_cap=32)


def test_the_cap_of_visible_answers_binds_policies_of_forced_answers_too() -> None:
    content = example_content()
    content["probe"]["answer_cap"] = 96
    assert policy_plan(policy_from(content)).answer_cap == 96
    assert check(content, answer_cap=96) == []
    with pytest.raises(PolicyError, match="answer_cap\\) 96, got 512"):
        check(content, answer_cap=512)
    content["probe"]["answer_cap"] = None  # of recorded answers
    assert policy_plan(policy_from(content)).answer_cap == 512
    assert check(content, answer_cap=32) == []


def test_a_hub_model_is_bound_by_name_and_commit() -> None:
    content = example_content()
    content["model"]["revision"] = "0123abc"
    assert check(content, model_revision="0123abc") == []
    with pytest.raises(PolicyError, match="model 'tiny-reasoner', got 'renamed'"):
        check(content, model_revision="0123abc", model="renamed")


def test_archives_are_bound_to_no_model() -> None:
    (remark,) = check(example_contents()["archive"], model="other", chat_template_kwargs=None)
    assert "bound to no model" in remark
    with pytest.raises(PolicyError, match="entropy source"):
        check(example_contents()["archive"], source="top-k:5")


def test_markers_known_by_position_alone_are_loaded_and_never_served(tmp_path: Path) -> None:
    content = anywhere_content("marker")
    save_policy(policy_from(content | {"trigger": content["trigger"] | {"markers": []}}),
                tmp_path / "p.joblib")  # fmt: skip
    policy = load_policy(tmp_path / "p.joblib")
    assert policy.trigger.needs_ids
    with pytest.raises(PolicyError, match="knows no marker's token ids"):
        policy_plan(policy)
    with pytest.raises(PolicyError, match="knows no marker's token ids"):
        Session(policy, closer_tokens=1, on_stop="probe")
    assert policy_plan(policy_from(content)).cue == PLAN["cue"]


@pytest.mark.parametrize("family", ["learned", "confidence", "entropy", "confidence-leap"])
def test_who_reads_log_probabilities_minds_the_entropy_source(family: str) -> None:
    with pytest.raises(PolicyError, match="entropy source 'full', got 'top-k:5'"):
        check(family_content(family), source="top-k:5")


@pytest.mark.parametrize("content", [family_content("run-stability"), text_content()])
def test_who_reads_none_does_not(content: dict[str, Any]) -> None:
    assert check(content, source="top-k:5") == []


def test_full_budget_does_not_mind_how_it_would_have_probed() -> None:
    assert check(full_budget_content(), source="top-k:5", cue="?", cap=3) == []
    with pytest.raises(PolicyError, match="tokenizer"):
        check(full_budget_content(), tokenizer_sha256="1" * 64)
