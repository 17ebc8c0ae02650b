"""The policies that ship: they load, and they are about the samples beside them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from stopadvisor.policy import load_policy

ROOT = Path(__file__).resolve().parent.parent
POLICIES = ROOT / "policies"
README = (POLICIES / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["arithmetic", "choice", "hard"])
def test_a_bundled_policy_is_about_its_sample(name: str) -> None:
    policy = load_policy(POLICIES / f"{name}.joblib")
    content = policy.content
    sample = (ROOT / "samples" / f"{name}.jsonl").read_bytes()
    assert policy.kind == "stop"
    assert content["workload_sha256"] == hashlib.sha256(sample).hexdigest()
    certificate, expected = content["certificate"], content["expected"]
    low, high = expected["test_total_saving_ci95"]
    row = (
        f"| `{name}.joblib` | {content['family']} | {', '.join(map(str, policy.budgets))} | "
        f"{certificate['losses']} of {certificate['n']} | "
        f"{expected['test_total_saving_pct']:.1f} % [{low:.1f}, {high:.1f}] | "
        f"{expected['test_full_accuracy']:.3f} → {expected['test_accuracy']:.3f} |"
    )
    assert row.replace(" 0.", " .") in README


@pytest.mark.integration
@pytest.mark.parametrize("name", ["arithmetic", "choice", "hard"])
def test_a_bundled_policy_is_bound_to_the_bundled_model(name: str) -> None:
    revision = pytest.importorskip("stopadvisor.engines.hf.revision")
    model = load_policy(POLICIES / f"{name}.joblib").content["model"]
    assert model["revision"] == revision.content_revision(ROOT / "samples" / "tiny-reasoner")
