"""`calibrate` follows the advice, asks for alpha, and never writes over another policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.policy.frozen import load_policy
from stopadvisor.policy.run_policies import calibration_of
from tests.material import CERTIFY, Call, edit_records, forget_looks, looks_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("sums")]

RUN = Path("runs/sums")
FAST = ["--families", "confidence"]


def unsolve(row: dict[str, Any], part: str) -> None:
    """For `edit_records`: three questions in four are never solved, the fourth late."""
    row["natural_correct"] = int(row["key"][:4], 16) % 4 == 0
    for checkpoint in row["checkpoints"]:
        checkpoint["correct"] = row["natural_correct"] and checkpoint["budget"] > 40


# --- The advice and the file agree ----------------------------------------------------------------


def test_where_the_advice_is_full_thinking_so_is_the_policy(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate could be had: the rule saves by giving up."""
    edit_records(RUN, unsolve)
    words = (*FAST, "--alpha", "0.24")
    advice = call.json("assess", RUN, *words)["recommendation"]
    assert advice["policy"] == "full-budget"
    with monkeypatch.context() as closed:
        closed.setattr("stopadvisor.certification.looks.hand_out", None)
        found = call.json("calibrate", RUN, *words, code=3)
    assert (found["kind"], found["look"], found["certified"]) == ("full-budget", None, False)
    assert "the advice is full thinking" in found["refusal"]["reason"]
    assert "--despite advice" in found["refusal"]["reason"]
    assert load_policy(found["policy"]).kind == "full-budget"
    assert looks_of(RUN) == []
    words = (*words, "--despite", "advice")
    assert "or pass --despite large-alpha" in call.refused("calibrate", RUN, *words)
    despite = call.json("calibrate", RUN, *words, "--despite", "large-alpha")
    assert (despite["kind"], despite["certified"]) == ("stop", True)
    assert "--despite advice" in despite["changed"]


def test_another_rule_than_the_one_that_was_read_is_explained_in_a_sentence(call: Call) -> None:
    call.json("assess", RUN, "--alpha", "0.15", "--families", "entropy")
    found = call.json("calibrate", RUN, *CERTIFY, "--families", "confidence")
    assert found["family"] == "confidence"
    assert found["changed"] is not None
    assert "assess had advised entropy alone" in found["changed"]
    assert found["changed"] in found["remarks"]
    out = call("calibrate", RUN, *CERTIFY, "--families", "confidence")[1]
    assert "changed assess had advised" in " ".join(out.split())
    again = call.json("calibrate", RUN, *CERTIFY, "--families", "confidence")
    assert again["changed"] == found["changed"]


def test_after_an_assessment_without_alpha_the_change_names_the_risk_it_was_at(call: Call) -> None:
    assessed = call.json("assess", RUN, "--families", "entropy")
    assert assessed["alpha"] is None
    found = call.json("calibrate", RUN, *CERTIFY, "--families", "confidence")
    taken = assessed["matched_risk"][0]["alpha"]
    assert f"entropy alone at alpha = {taken:g}; at alpha = 0.15" in found["changed"]
    line = call.refused("calibrate", RUN, "--families", "confidence")
    assert "say --alpha, the largest share of all questions that may lose a right answer" in line


def test_the_advised_rule_needs_no_sentence(call: Call) -> None:
    call.json("assess", RUN, "--families", "confidence")
    found = call.json("calibrate", RUN, *CERTIFY, "--families", "confidence")
    assert (found["family"], found["changed"]) == ("confidence", None)


# --- Alpha ----------------------------------------------------------------------------------------


def test_a_large_alpha_is_refused_and_goes_on_when_told(call: Call) -> None:
    line = call.refused("calibrate", RUN, *FAST, "--alpha", "0.3")
    assert "more than 20%" in line
    assert "--loss drop" in line
    assert "--despite large-alpha" in line
    assert looks_of(RUN) == []
    found = call.json("calibrate", RUN, *FAST, "--alpha", "0.3", "--despite", "large-alpha")
    assert found["certified"] is True
    assert any("of the full-thinking accuracy" in remark for remark in found["remarks"])


# --- A certified policy is never overwritten ------------------------------------------------------


def test_the_name_carries_alpha_and_digest(call: Call) -> None:
    found = call.json("calibrate", RUN, *CERTIFY, *FAST)
    policy = load_policy(found["policy"])
    assert Path(found["policy"]).name == f"policy-a15-{policy.digest[:8]}.joblib"
    assert found["promoted"] == "runs/sums/policy.joblib"
    assert (RUN / "policy.joblib").read_bytes() == Path(found["policy"]).read_bytes()
    for file in (RUN / "calibration.json", calibration_of(Path(found["policy"]))):
        assert json.loads(file.read_bytes()) == found


def test_a_failure_leaves_the_certified_policy_in_use(call: Call) -> None:
    first = call.json("calibrate", RUN, *CERTIFY, *FAST)
    forget_looks(RUN)
    second = call.json("calibrate", RUN, *CERTIFY, *FAST, "--alpha", "0.001", code=3)
    assert second["promoted"] is None
    assert first["policy"] != second["policy"]
    assert load_policy(RUN / "policy.joblib").content == load_policy(first["policy"]).content
    assert json.loads((RUN / "calibration.json").read_bytes()) == first
    assert load_policy(second["policy"]).kind == "full-budget"
    assert json.loads(calibration_of(Path(second["policy"])).read_bytes()) == second


def test_a_certificate_comes_after_a_failure_into_use(call: Call) -> None:
    first = call.json("calibrate", RUN, *CERTIFY, *FAST, "--alpha", "0.001", code=3)
    assert first["promoted"] is not None
    second = call.json("calibrate", RUN, *CERTIFY, *FAST)
    assert second["promoted"] is not None
    assert load_policy(RUN / "policy.joblib").kind == "stop"
    assert load_policy(first["policy"]).kind == "full-budget"


def test_out_does_not_write_over_another_certified_policy(call: Call) -> None:
    words = ("calibrate", str(RUN), *FAST, *CERTIFY, "--out", "p.joblib")
    first = call.json(*words)
    before = Path("p.joblib").read_bytes()
    assert call.json(*words)["policy"] == "p.joblib"  # the same again is the same file
    forget_looks(RUN)
    second = call.json(*words, "--alpha", "0.3")
    assert Path("p.joblib").read_bytes() == before
    digest = load_policy(second["policy"]).digest
    assert second["policy"] == f"p-a30-{digest[:8]}.joblib"
    beside = json.loads(calibration_of(Path(second["policy"])).read_bytes())
    assert (first["alpha"], beside["alpha"]) == (0.15, 0.3)
    assert any("p.joblib holds another certified policy" in text for text in second["remarks"])
