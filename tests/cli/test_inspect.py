"""`inspect`: a frozen policy in words and as JSON, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stopadvisor.policy.frozen import FAMILIES, build_policy, save_policy
from stopadvisor.rules.families import rule_name
from tests.material import Call, caller
from tests.policy_content import family_content, full_budget_content

FIELDS = [
    "schema", "policy", "digest_valid", "kind", "family", "threshold", "decision_threshold",
    "budgets", "on_stop", "task", "serving", "entropy_source", "max_think", "model", "engine",
    "certificate", "profile", "expected", "versions", "created", "digest", "n_questions",
    "features", "probe", "sampling", "normalizer", "grader", "workload_sha256",
]  # fmt: skip
FEATURE = ["name", "coef", "mean", "scale", "splits"]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    monkeypatch.chdir(tmp_path)

    return caller(capsys, "inspect")


def save(family: str | None, path: str = "policy.joblib") -> None:
    content = full_budget_content() if family is None else family_content(family)
    save_policy(build_policy(content), path, format="json" if path.endswith("json") else "joblib")


@pytest.mark.parametrize("family", [*FAMILIES, None])
def test_json_has_exactly_its_fields(call: Call, family: str | None) -> None:
    save(family)
    code, out, err = call("policy.joblib", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert list(found) == FIELDS
    assert found["family"] == family
    assert found["digest_valid"] is True
    assert all(list(row) == FEATURE for row in found["features"])
    weights = [
        abs(row["splits"] if row["coef"] is None else row["coef"]) for row in found["features"]
    ]
    assert weights == sorted(weights, reverse=True)


@pytest.mark.parametrize("family", [*FAMILIES, None])
def test_the_summary_fits_eighty_columns(call: Call, family: str | None) -> None:
    save(family)
    code, out, err = call("policy.joblib")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80, out
    assert out.startswith(
        "Full budget:" if family is None else f"Stops early by {rule_name(family)}, "
    )
    assert "golden decisions replay" in out


def test_json_policies_are_read_too(call: Call) -> None:
    save("entropy", "policy.json")
    assert call("policy.json")[0] == 0


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "no such policy file"),
        (b"", "not a policy"),
        (b"\x80\x04K\x01.", "a policy is one dict"),
        (b'{"schema": 99}', "newer StopAdvisor"),
        (b"PK\x03\x04", "compressed (zip)"),
    ],
    ids=["missing", "empty", "number", "newer", "compressed"],
)
def test_what_is_no_policy_is_one_line(call: Call, data: bytes | None, said: str) -> None:
    if data is not None:
        Path("bad.joblib").write_bytes(data)
    code, out, err = call("bad.joblib")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("stopadvisor: bad.joblib: ")
    assert said in err


def test_a_changed_policy_is_refused(call: Call) -> None:
    save("entropy", "policy.json")
    text = Path("policy.json").read_text(encoding="utf-8")
    Path("policy.json").write_text(text.replace('"kv-fork"', '"overlap"'), encoding="utf-8")
    code, _, err = call("policy.json")
    assert code == 2
    assert "the digest does not match" in err
