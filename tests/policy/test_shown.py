"""What `inspect` shows of a policy: its features, its questions and how to serve it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.policy.shown import inspected, server_words
from stopadvisor.workload.questions import PartCounts
from tests.policy_content import (
    example_content,
    example_terms,
    family_content,
    full_budget_content,
    ladder_content,
    policy_from,
)

DRAWN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
SEEN = ("--", "m", "--reasoning-parser", "deepseek_r1")
"""What vLLM always needs to be told."""


def words(model: str | None = "m", **changes: Any) -> tuple[str, ...] | None:
    """Arguments for a policy that was chosen for vLLM and reads answers alone."""
    given = family_content("run-stability") | {"serving": "vllm", "engine": None} | changes
    return server_words(example_terms(**given), model)


def sampling(temperature: float | None, drawn: float | None) -> dict[str, Any]:
    found = None if drawn is None else DRAWN | {"temperature": drawn}
    return {"greedy": False, "temperature": temperature, "seed": 0, "drawn": found}


def engine(dtype: str | None) -> dict[str, Any]:
    own: dict[str, Any] = example_content()["engine"]
    return own | {"dtype": dtype}


def test_only_a_stack_with_a_server_is_served() -> None:
    assert words() == SEEN
    assert words(serving="prefix-cache") == ("--upstream", "http://127.0.0.1:8000/v1")
    for none in (
        words(None),
        words(None, serving="prefix-cache"),
        words(serving="kv-fork"),
        words(serving="black-box"),
        words(kind="full-budget"),
    ):
        assert none is None


def test_the_parser_is_that_of_the_model() -> None:
    found = words("models/Qwen3-8B")
    assert found == ("--", "models/Qwen3-8B", "--reasoning-parser", "qwen3")


def test_weights_are_loaded_as_at_calibration() -> None:
    assert words(engine=engine(None)) == SEEN
    assert words(engine=engine("bfloat16")) == (*SEEN, "--dtype", "bfloat16")


@pytest.mark.parametrize(
    ("temperature", "drawn", "wanted"),
    [
        (0.6, 0.6, 0.6),  # set by the user
        (None, 0.6, None),  # the model's own, which vLLM reads from its files
        (None, 1.0, None),
        (None, 0.0, 0.0),  # a model that says nothing is greedy here and is not in vLLM
        (0.6, None, None),  # not recorded
    ],
)
def test_a_temperature_that_vllm_would_not_take_by_itself_is_given(
    temperature: float | None, drawn: float | None, wanted: float | None
) -> None:
    found = words(sampling=sampling(temperature, drawn))
    assert found is not None
    assert found[: len(SEEN)] == SEEN
    if wanted is None:
        assert found == SEEN
    else:
        option, value = found[len(SEEN) :]
        assert (option, json.loads(value)) == (
            "--override-generation-config",
            {"temperature": wanted},
        )
    assert words(sampling=None) == SEEN


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("full", ("--max-logprobs", "-1")),
        ("top-k:20", ()),  # as many as vLLM gives by itself
        ("top-k:21", ("--max-logprobs", "21")),
    ],
)
def test_as_many_log_probabilities_are_allowed_as_the_rule_reads(
    source: str, wanted: tuple[str, ...]
) -> None:
    assert words(entropy_source=source) == SEEN  # it reads answers alone
    reads = {"family": "entropy", "entropy_source": source}
    assert words(**reads) == (*SEEN, *wanted)


def test_a_policy_is_described_by_its_file(tmp_path: Path) -> None:
    policy = policy_from(example_content(serving="vllm"))
    shown = inspected(policy, tmp_path / "policy.json")
    assert shown.n_questions == PartCounts(8, 240, 4)
    sizes = [abs(feature.coef) for feature in shown.features]
    assert sizes == sorted(sizes, reverse=True)
    assert {feature.name for feature in shown.features} == set(policy.terms.features)
    assert shown.sampling["temperature"] == 0.6
    assert shown.serve_with is not None
    assert shown.serve_with[:2] == ("--", "tiny-reasoner")
    here = inspected(policy, tmp_path / "policy.json", model="/models/here")
    assert here.serve_with is not None
    assert here.serve_with[:2] == ("--", "/models/here")


def test_what_a_policy_lacks_is_shown_as_nothing(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    never = inspected(policy_from(full_budget_content() | {"serving": "vllm"}), path)
    assert (never.serve_with, never.certificate, never.features) == (None, None, ())
    climbs = inspected(policy_from(ladder_content()), path)
    assert (climbs.serve_with, climbs.sampling, climbs.prompt_template) == (None, {}, {})
