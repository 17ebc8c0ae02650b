"""`assess` ends in advice whatever it measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.material import CERTIFY, Call, edit_records

RUN = Path("runs/sums")
FAST = ["--families", "confidence"]

pytestmark = pytest.mark.usefixtures("sums")


def all_wrong(row: dict[str, Any], part: str) -> None:
    row["natural_correct"] = False
    for checkpoint in row["checkpoints"]:
        checkpoint["correct"] = False


def all_right(row: dict[str, Any], part: str) -> None:
    row["natural_correct"] = True
    for checkpoint in row["checkpoints"]:
        checkpoint["correct"] = True


def few_right(row: dict[str, Any], part: str) -> None:
    """As under a wrong template: 1 question in 16 is right, at any place."""
    right = row["key"][0] == "0"
    row["natural_correct"] = right
    for checkpoint in row["checkpoints"]:
        checkpoint["correct"] = right


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (all_wrong, "all forced answers are wrong"),
        (all_right, "all forced answers are right"),
        (few_right, "alpha must be below the full-thinking accuracy (0.0"),
    ],
)
def test_profile_and_advice_are_always_shown(call: Call, edit: Any, said: str) -> None:
    edit_records(RUN, edit)
    found = call.json("assess", RUN, *FAST, "--alpha", "0.15")
    assert json.loads((RUN / "assessment.json").read_bytes()) == found
    assert found["recommendation"]["policy"] == "full-budget"
    assert any(said in reason for reason in found["recommendation"]["reasons"])
    assert sum(row["count"] for row in found["profile"].values()) == found["split"]["fit"]
    assert (found["matched_risk"][0]["learned"], found["label_savings"]) == (None, [])
    text = call.screen("assess", RUN, *FAST, "--alpha", "0.15")
    assert text.startswith("Don't stop early on vLLM: ")
    assert said[1:] in text  # it begins a sentence here


def test_its_page_says_so_without_the_pictures_of_rules(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOPADVISOR_REPORT", "1")
    pytest.importorskip("matplotlib")
    edit_records(RUN, all_right)
    code, _, err = call("assess", RUN, *FAST, "--alpha", "0.15")
    assert code == 0, err
    page = (RUN / "report.html").read_text(encoding="utf-8")
    assert "all forced answers are right" in page
    assert 'id="part-frontier"' not in page


def test_calibrate_follows_that_advice(call: Call) -> None:
    edit_records(RUN, all_right)
    found = call.json("calibrate", RUN, *FAST, *CERTIFY, code=3)
    assert (found["kind"], found["look"]) == ("full-budget", None)
    assert "all forced answers are right" in found["refusal"]["reason"]


def test_an_alpha_that_cannot_be_missed_is_refused_by_calibrate(call: Call) -> None:
    edit_records(RUN, few_right)
    assert "never being right would meet it" in call.refused("calibrate", RUN, *FAST, *CERTIFY)
