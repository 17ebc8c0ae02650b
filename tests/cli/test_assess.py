"""`assess`, from the command line to `assessment.json`: blindness, remarks, refusals.

Figures are held by `assessment/test_figures`, screens by `report/test_screens`.
"""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.runs.directory import RunDirectory
from tests.material import CERTIFY, Call, edit_records, looks_of, write_archive

RUN = Path("runs/sums")
FAST = ["--families", "confidence"]
"""One side instead of two, in a fraction of the time."""
AT = ["--alpha", "0.15"]
"""One promise instead of those that are compared where none is named."""


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("sums", "scripted", "few_draws")]


@pytest.fixture(name="call")
def assessing(call: Call) -> Call:
    """`assess` in a folder with a run and an archive `raw.npz`."""
    write_archive(Path("raw.npz"))
    return call.of("assess")


# --- The document ---------------------------------------------------------------------------------


def test_the_options_used_stand_in_the_run_and_can_be_used_again(call: Call) -> None:
    _, first, _ = call("runs/sums", "--json", "--alpha", "0.2", *FAST)
    assert Path("runs/sums/assessment.json").read_text(encoding="utf-8") == first
    file = Path("runs/sums/stopadvisor.toml")
    written = file.read_text(encoding="utf-8")
    assert tomllib.loads(written)["assess"]["alpha"] == 0.2
    shutil.copy(file, "again.toml")
    assert call("runs/sums", "--config", "again.toml")[:2] == (0, first)
    assert file.read_text(encoding="utf-8") == written


def test_assessed_again_a_run_keeps_the_options_of_its_probing(call: Call) -> None:
    file = Path("runs/sums/stopadvisor.toml")
    call.json("runs/sums", *FAST, *AT)
    assert (
        not {"model", "max-think"}
        & tomllib.loads(file.read_text(encoding="utf-8"))["assess"].keys()
    )
    probed = {
        "model": "llm/our model",
        "base-url": ["http://a/v1"],
        "max-think": 256,
        "cue": "open",
    }
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in probed.items()]
    file.write_text("".join(["[assess]\nalpha = 0.3\n", *lines]), encoding="utf-8")
    call.json("runs/sums", "--delta", "0.1", *FAST)
    written = tomllib.loads(file.read_text(encoding="utf-8"))["assess"]
    assert written.items() >= {**probed, "delta": 0.1}.items()
    assert "alpha" not in written
    for edited in ("assess = 5", "a = " + "[" * 3000):
        file.write_text(edited, encoding="utf-8")
        call.json("runs/sums", *FAST, *AT)
        assert "model" not in tomllib.loads(file.read_text(encoding="utf-8"))["assess"]


# --- Blindness ------------------------------------------------------------------------------------


def test_paper_protocol_on_a_run_needs_a_look(call: Call) -> None:
    line = call.refused("runs/sums", "--protocol", "paper")
    assert "--open-calibration" in line
    assert "stopadvisor calibrate runs/sums" in line
    assert not Path("runs/sums/assessment.json").exists()
    assert looks_of(Path("runs/sums")) == []

    found = call.json("runs/sums", "--protocol", "paper", "--open-calibration")
    assert found["protocol"] == "paper"
    (look,) = looks_of(Path("runs/sums"))
    assert look.asked["protocol"] == "paper"
    assert len(look.questions) == RunDirectory.load(Path("runs/sums")).parts(
        RunDirectory.load(Path("runs/sums")).table().groups
    ).tolist().count(1)

    # Open is open: neither protocol nor flag costs a second look.
    call.json("runs/sums", "--protocol", "paper")
    assert len(looks_of(Path("runs/sums"))) == 1

    # Settings that stood before are charged; others could have been chosen by what was shown.
    assert "showed their outcomes (paper)" in call.refused(
        "runs/sums", *FAST, *CERTIFY, command="calibrate"
    )
    _, out, _ = call("runs/sums", "--json", *CERTIFY, command="calibrate")
    assert json.loads(out)["confidence"] == pytest.approx(0.9)


def test_what_is_shown_of_an_archive_is_charged(call: Call) -> None:
    for _ in range(2):
        call.json("raw.npz", "--protocol", "paper", "--alpha", "0.3")  # needs no leave
    (folder,) = Path("runs").glob("raw-archive-*")
    (look,) = looks_of(folder)
    assert (look.asked["protocol"], look.opened) == ("paper", True)
    line = call.refused("raw.npz", *CERTIFY, "--alpha", "0.25", command="calibrate")
    assert "showed their outcomes (paper)" in line
    _, out, _ = call("raw.npz", "--json", *CERTIFY, "--alpha", "0.3", command="calibrate")
    found = json.loads(out)
    assert (found["alpha"], found["look"]["number"]) == (0.3, 2)
    assert found["confidence"] == pytest.approx(0.9)


# --- Workloads and regrading ----------------------------------------------------------------------


def test_regrading_takes_the_workloads_gold_and_tells_no_outcome(call: Call) -> None:
    before = call.json("runs/sums", *FAST, *AT)["profile"]

    def spoil(row: dict[str, Any], part: str) -> None:
        for checkpoint in row["checkpoints"]:
            checkpoint["correct"] = False
            checkpoint["normalized"] = "?"

    edit_records(Path("runs/sums"), spoil)
    code, _, err = call("runs/sums", "--regrade", *FAST, *AT)
    assert code == 0, err
    assert "graded runs/sums again" in err
    assert not re.search(r"again.*\d", err)
    assert call.json("runs/sums", *FAST, *AT)["profile"] == before


def test_the_split_of_an_archive_is_drawn_once(call: Call) -> None:
    found = call.json("raw.npz", "--split", "40/60/0", *FAST, *AT)
    assert found["split"]["test"] == 0
    assert "never drawn again" in call.refused("raw.npz", "--split", "50/50/0")
    other = call.json("raw.npz", "--split", "50/50/0", "--out", "elsewhere", *FAST, *AT)
    assert other["run"] == "elsewhere"
    assert other["split"] != found["split"]


# --- For people -----------------------------------------------------------------------------------


def test_remarks_go_to_stderr_and_into_the_document(call: Call) -> None:
    words = ("--alpha", "0.6", "--split", "40/40/20")
    code, out, err = call("raw.npz", *words, "--json", *FAST)
    assert code == 0, err
    remarks = json.loads(out)["remarks"]
    assert [line.removeprefix("note: ") for line in err.splitlines()] == remarks
    text = " ".join(remarks)
    assert "full-thinking accuracy" in text
    assert "--split 40/60/0" in text
    assert "bound to no model" in text
    assert call("raw.npz", "--quiet", *FAST, *AT)[2] == ""


# --- Whatever was measured ------------------------------------------------------------------------


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
    text = call.screen(RUN, *FAST, "--alpha", "0.15")
    found = json.loads((RUN / "assessment.json").read_bytes())
    assert found["recommendation"]["policy"] == "full-budget"
    assert any(said in reason for reason in found["recommendation"]["reasons"])
    assert sum(row["count"] for row in found["profile"].values()) == found["split"]["fit"]
    assert (found["matched_risk"][0]["learned"], found["label_savings"]) == (None, [])
    assert text.startswith("Don't stop early on vLLM: ")
    assert said[1:] in text  # it begins a sentence here


def test_its_page_says_so_without_the_pictures_of_rules_and_calibrate_follows(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOPADVISOR_REPORT", "1")
    pytest.importorskip("matplotlib")
    edit_records(RUN, all_right)
    code, _, err = call(RUN, *FAST, "--alpha", "0.15")
    assert code == 0, err
    page = (RUN / "report.html").read_text(encoding="utf-8")
    assert "all forced answers are right" in page
    assert 'id="part-frontier"' not in page
    monkeypatch.setenv("STOPADVISOR_REPORT", "0")
    (RUN / "report.html").unlink()
    found = call.json(RUN, *FAST, *CERTIFY, code=3, command="calibrate")
    assert (found["kind"], found["look"]) == ("full-budget", None)
    assert "all forced answers are right" in found["refusal"]["reason"]
