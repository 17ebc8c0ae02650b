"""`--loss` of `assess` and `calibrate`: other promises than lost answers, and several at once."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from stopadvisor.assessment.settings import SettingsOverrides
from stopadvisor.cli.parts.settings import overrides
from stopadvisor.policy.frozen import load_policy
from stopadvisor.runs.sources import open_source
from tests.material import Call, looks_of
from tests.policy_content import certificate_in

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("sums")]

RUN = Path("runs/sums")
FAST = ("--families", "confidence", "--despite", "advice", "--despite", "large-alpha")


def test_a_policy_may_promise_that_few_replies_differ(call: Call) -> None:
    words = ("calibrate", RUN, *FAST, "--alpha", "0.3", "--looks", "2")
    lost = call.json(*words, "--out", "lost.json")
    found = call.json(*words, "--loss", "differs", "--out", "differs.json")
    certificate = found["certificate"]
    assert "loss" not in lost["certificate"]  # files without the key mean lost
    assert certificate["loss"] == "differs"
    assert "at most 30 % of replies differ from what full" in certificate["claim"]
    assert certificate_in(load_policy("differs.json")) == certificate
    first, second = looks_of(open_source(RUN).folder)
    assert (first.asked.get("loss"), second.asked["loss"]) == (None, "differs")
    assert first.asked["data"] != second.asked["data"]  # the answers are in this one


def test_several_promises_hold_of_one_rule_at_once(call: Call) -> None:
    limits = ("--loss", "lost", "--loss", "drop", "--alpha", "lost=0.3,drop=0.25")
    found = call.json("calibrate", RUN, *FAST, *limits, "--out", "both.json")
    first, second = found["certificate"]["guarantees"]
    assert "loss" not in found["certificate"]
    assert (first["loss"], first["alpha"], second["loss"], second["alpha"]) == (
        *("lost", 0.3),
        *("drop", 0.25),
    )
    assert found["certificate"]["losses"] == first["lost"] == second["lost"]
    assert found["asked"] == "at most 30% lost; accuracy falls by at most 25%"
    (look,) = looks_of(open_source(RUN).folder)
    assert look.asked["also"] == [{"loss": "drop", "alpha": 0.25, "category": None}]
    assert (
        call.json("calibrate", RUN, *FAST, *limits, "--out", "both.json")["look"] == found["look"]
    )  # the same look


def test_what_was_assessed_for_is_what_is_certified(call: Call) -> None:
    limits = ("--alpha", "drop=0.25,lost=0.3", "--families", "confidence")
    code, out, err = call("assess", RUN, *limits)
    assert code == 0, err
    shown = " ".join(out.split())
    assert "can promise: accuracy falls by at most 25%; at most 30% lost; probability" in shown
    assert "rule drop accuracy saves" in shown
    assert f"stopadvisor calibrate {RUN} --alpha drop=0.25,lost=0.3" in shown
    assessed = json.loads((open_source(RUN).folder / "assessment.json").read_bytes())
    assert assessed["settings"]["loss"] == "drop"
    assert assessed["settings"]["also"] == [{"loss": "lost", "alpha": 0.3, "category": None}]
    taken_over = call.json("calibrate", RUN, *FAST, "--alpha", "0.25", "--out", "taken.json")
    assert taken_over["asked"] == assessed["asked"]
    # Who names a loss names all of them.
    assert SettingsOverrides(alpha=0.3, loss="lost", also=()).settings(assessed).is_lost
    named = {"alpha": 0.3, "loss": ("lost",)}
    with click.Context(click.Command("assess")):
        assert overrides(named).also == ()
