"""`inspect`: a frozen policy in words and as JSON, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from stopadvisor.policy.frozen import save_policy
from stopadvisor.rules.families import FAMILIES, rule_name
from tests.material import Call
from tests.policy_content import (
    TRIGGERS,
    anywhere_content,
    family_content,
    full_budget_content,
    ladder_content,
    policy_from,
)


@pytest.fixture(name="call")
def of_one_command(call: Call) -> Call:
    return call.of("inspect")


def save(family: str | None, path: str = "policy.joblib") -> None:
    rule = {} if family is None else family_content(family)
    content = (rule or full_budget_content()) | {"expected": None}
    save_policy(policy_from(content), path, format="json" if path.endswith("json") else "joblib")


@pytest.mark.parametrize("family", [*FAMILIES, None])
def test_each_rule_is_shown(call: Call, family: str | None) -> None:
    save(family)
    found = call.json("policy.joblib")
    assert (found["family"], found["digest_valid"]) == (family, True)
    weights = [
        abs(row["splits"] if row["coef"] is None else row["coef"]) for row in found["features"]
    ]
    assert weights == sorted(weights, reverse=True)
    code, out, err = call("policy.joblib")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80, out
    rule = "Never stops early:"
    if family is not None:
        rule = f"Certified: stops early by {rule_name(family)}, "
    assert out.startswith(rule)
    assert "file check: OK" in out


@pytest.mark.parametrize(
    ("family", "said"),
    [("learned", "the trial answer is right is"), ("learned-keeps", "stopping loses nothing is")],
)
def test_a_learned_rule_says_what_its_probability_is_of(call: Call, family: str, said: str) -> None:
    save(family)
    out = call.screen("policy.joblib")
    assert f"when the estimated probability that {said} at least" in out


def test_two_policies_by_other_graders_are_told_apart(call: Call) -> None:
    content = family_content("confidence") | {"expected": None}
    for path, grader in (("a.json", "by hand"), ("b.json", "by eye")):
        save_policy(policy_from(content | {"grader": grader}), path, format="json")
    (change,) = call.json("a.json", "b.json")["changes"]
    assert change == {"what": "grader", "before": "by hand", "after": "by eye"}


def test_what_is_no_policy_is_one_line(call: Call) -> None:
    assert "bad.joblib: no such policy file" in call.refused("bad.joblib")
    Path("bad.joblib").write_bytes(b'{"schema": 99}')
    assert "newer StopAdvisor" in call.refused("bad.joblib")
    assert "a policy's file, got a folder without one: `stopadvisor cal" in call.refused(".")
    save(None)
    assert "a policy's file, got a folder with policy.joblib" in call.refused(".")


@pytest.mark.parametrize("name", TRIGGERS)
def test_it_says_where_the_policy_probes(call: Call, name: str) -> None:
    content = anywhere_content(name, "agreement", expected=None)
    save_policy(policy_from(content), "policy.joblib")
    code, out, err = call("policy.joblib")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80, out
    said = {
        "grid-stop": ["at 6 checkpoints", "at the latest at 128 thinking"],
        "stride": ["every 16 thinking tokens", "from 16 up to 112"],
        "stride-stop": ["from 8 up to 104", "at the latest at 104 thinking tokens"],
        "marker": ["where a marker begins", "markers (2 spellings), at least 12", "6 times"],
        "marker-stop": ["only the first 9 markers of a trace", "at 130"],
    }[name]
    words = " ".join(out.split())
    assert all(text in words for text in said), out
    found = call.json("policy.joblib")
    assert found["trigger"]["kind"] == TRIGGERS[name].kind


def test_a_ladder_of_unknown_savings_says_what_it_serves(call: Call) -> None:
    save_policy(policy_from(ladder_content(expected=None)), "policy.joblib")
    first = call.screen("policy.joblib").partition(".")[0]
    assert first.startswith("Certified: stops early by ")
    assert ", serving " in first


def test_a_fixed_budget_is_shown_as_engine_settings(call: Call) -> None:
    content = family_content("fixed-budget") | {"on_stop": "answer", "expected": None}
    save_policy(policy_from(content), "policy.joblib")
    out = call("policy.joblib")[1]
    assert out.startswith("Certified: stops early by a fixed budget, at 96 thinking tokens.")
    for text in (
        '"thinking_token_budget": 96 in each request',
        '"custom_params": {"thinking_budget": 96}',
        "--reasoning-budget 96 at the server",
    ):
        assert text in " ".join(out.split()), out
    found = call.json("policy.joblib")["engine_settings"]
    assert [row["engine"] for row in found] == ["vLLM", "SGLang", "llama.cpp"]
    assert found[0]["request"] == {"thinking_token_budget": 96}


def test_a_forced_answer_is_no_engine_setting(call: Call) -> None:
    save("fixed-budget")
    assert call.json("policy.joblib")["engine_settings"] == []
    assert "the certified reply is the forced answer" in call.screen("policy.joblib")
