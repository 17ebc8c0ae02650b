"""`assess`, from the command line to `assessment.json`: fields, blindness, screens, refusals."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.ground.results import to_json
from stopadvisor.rules.serving_profile import PerTokenSeconds, ServingProfile
from stopadvisor.runs.directory import RunDirectory
from tests.material import CERTIFY, Call, edit_records, looks_of, make_run, write_archive
from tests.scripted import write_sums

RUN = Path("runs/sums")
FAST = ["--families", "confidence"]
"""One side instead of two, in a fraction of the time."""


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("sums", "scripted")]


@pytest.fixture(name="call")
def assessing(call: Call) -> Call:
    """`assess` in a folder with a run and an archive `raw.npz`."""
    write_archive(Path("raw.npz"))
    return call.of("assess")


# --- The document ---------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["runs/sums", "raw.npz"])
def test_figures_of_a_document_agree_with_each_other(call: Call, target: str) -> None:
    found = call.json(target, *FAST)
    assert (found["schema"], found["protocol"]) == (1, "deploy")
    assert sum(found["split"].values()) == found["workload"]["n_questions"]
    assert sum(row["count"] for row in found["profile"].values()) == found["split"]["fit"]
    assert found["regime"]["basis"] == "fit"
    assert len(found["matched_risk"]) == 1
    assert sum(r["is_here"] for r in found["label_savings"]) == 1
    prices = found["serving"]["prices"]
    assert (prices["source"], prices["gpu"], prices["in_flight"]) == ("roofline", "h100", 32)
    assert 0 < prices["cached"] < prices["prefilled"] < prices["decoded"] < prices["request"]
    assert found["serving"]["kv-fork"]["money_per_1000"] is None
    assert set(found["recommendation"]["schedule"]) <= set(found["workload"]["budgets"])


def test_the_options_used_stand_in_the_run_and_can_be_used_again(call: Call) -> None:
    _, first, _ = call("runs/sums", "--json", "--alpha", "0.2", *FAST)
    assert Path("runs/sums/assessment.json").read_text(encoding="utf-8") == first
    file = Path("runs/sums/stopadvisor.toml")
    written = file.read_text(encoding="utf-8")
    assert tomllib.loads(written)["assess"]["alpha"] == 0.2
    shutil.copy(file, "again.toml")
    assert call("runs/sums", "--config", "again.toml")[:2] == (0, first)
    assert file.read_text(encoding="utf-8") == written


def test_prices_give_money_and_break_evens(call: Call) -> None:
    words = ["runs/sums", "--price", "0.5/0.05/2", "--serving", "prefix-cache", *FAST]
    row = call.json(*words)["serving"]["prefix-cache"]
    tokens, money = row["tokens"], row["money_per_1000"]
    cost = 0.5 * tokens["prefilled"] + 0.05 * tokens["cached"] + 2 * tokens["decoded"]
    assert money["policy"] == pytest.approx(cost / 1000)  # per request in millionths
    assert row["saving_pct"] == pytest.approx(100 * (1 - money["policy"] / money["full"]))
    if row["saving_pct"] > 0:
        assert row["break_even_probes"] > row["probes"]
        assert row["break_even_cached_price"] > 0.05
    _, out, _ = call(*words)
    assert "per 1000" in out
    assert f"{money['policy']:.4g}" in out
    assert f"instead of {money['full']:.4g} per 1000 requests" in out


def timed(request: float, round_trip: float = 0.0) -> Path:
    """A serving profile: a token takes a second, and reading is free."""
    profile = ServingProfile(
        model="m",
        engine="vllm",
        device="here",
        per_token_seconds=PerTokenSeconds(0.0, 0.0, 1.0),
        per_request_seconds=request,
        round_trip_seconds=round_trip,
        at_batch=1,
        misfit=0.0,
    )
    Path("profile.json").write_text(to_json(profile), encoding="utf-8")
    return Path("profile.json")


def test_tokens_are_not_time(call: Call) -> None:
    words = (*FAST, "--serving", "prefix-cache", "--price", str(timed(2.0)))
    found = call.json("runs/sums", "--alpha", "0.15", *words)
    assert found["settings"]["weights"]["unit"] == "seconds"
    row = found["serving"]["prefix-cache"]
    assert found["headline"].startswith(f"Saves {row['saving_pct']:.0f}% of the capacity")
    served = 100 * (1 / (1 - row["saving_pct"] / 100) - 1)
    shown = call("runs/sums", "--alpha", "0.15", *words)[1]
    assert f"the same hardware serves {served:.0f}% more requests" in shown


# --- Blindness ------------------------------------------------------------------------------------


def test_fifty_questions_are_told_how_many_labels_it_takes(call: Call, tmp_path: Path) -> None:
    few = make_run(tmp_path / "few", 50)
    _, out, _ = call(few, "--alpha", "0.1", *FAST)
    text = " ".join(out.split())
    ((found, needed, command),) = re.findall(
        r"labels (\d+) calibration questions cannot certify a loss of at most 10.0%: that takes "
        r"(\d+), none of them lost; `stopadvisor (.*?)`",
        text,
    )
    split = json.loads(Path(few, "assessment.json").read_text())["split"]
    assert int(found) == split["calibration"]
    assert command == "plan --alpha 0.1"
    asked = (*command.split()[1:], "--expected-risk", "0")
    answer = call.json(*asked, command="plan")
    assert answer["calibration_labels"] == int(needed) > int(found)


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


def test_a_workload_is_probed_first(call: Call, tmp_path: Path) -> None:
    file = write_sums(tmp_path / "more.jsonl", 150)
    code, out, err = call(file, "--budgets", "0,16,48", "--max-think", "256", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["run"].startswith("runs/more-scripted-")
    assert found["workload"]["budgets"] == [0, 16, 48]
    assert "task 'numeric' guessed from gold for 150 questions" in err
    assert found["split"]["test"] == 0, "so few questions certify better without a test part"
    assert "--split" not in err


def test_regrading_takes_the_workloads_gold_and_tells_no_outcome(call: Call) -> None:
    before = call.json("runs/sums", *FAST)["profile"]

    def spoil(row: dict[str, Any], part: str) -> None:
        for checkpoint in row["checkpoints"]:
            checkpoint["correct"] = False
            checkpoint["normalized"] = "?"

    edit_records(Path("runs/sums"), spoil)
    code, _, err = call("runs/sums", "--regrade", *FAST)
    assert code == 0, err
    assert "graded runs/sums again" in err
    assert not re.search(r"again.*\d", err)
    assert call.json("runs/sums", *FAST)["profile"] == before


def test_regrading_without_the_workload_keeps_the_gold(call: Call) -> None:
    run = RunDirectory.load(Path("runs/sums"))
    run.annotate(workload={**run.manifest["workload"], "path": "gone.jsonl"})
    code, _, err = call("runs/sums", "--regrade", *FAST)
    assert code == 0
    assert "graded against the recorded gold" in err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["runs/sums", "--temperature", "0", "--budgets", "0,1"], "--budgets, --temperature"),
        (["runs/sums", "--split", "40/60/0"], "--split"),
        (["raw.npz", "--model", "x"], "--model"),
        (["raw.npz", "--regrade"], "--regrade"),
        (["raw.npz", "--open-calibration"], "--open-calibration"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_options_that_would_mean_nothing_are_refused(
    call: Call, words: list[str], named: str
) -> None:
    assert named in call.refused(*words)


def test_the_split_of_an_archive_is_drawn_once(call: Call) -> None:
    found = call.json("raw.npz", "--split", "40/60/0", *FAST)
    assert found["split"]["test"] == 0
    assert call.json("raw.npz", *FAST)["split"] == found["split"]
    assert "never drawn again" in call.refused("raw.npz", "--split", "50/50/0")
    other = call.json("raw.npz", "--split", "50/50/0", "--out", "elsewhere", *FAST)
    assert other["run"] == "elsewhere"
    assert other["split"] != found["split"]


# --- For people -----------------------------------------------------------------------------------


def test_without_alpha_it_says_what_each_promise_would_buy(call: Call) -> None:
    code, out, err = call("runs/sums", *FAST)
    assert code == 0, err
    found = json.loads(Path("runs/sums/assessment.json").read_bytes())
    rows = found["promises"]
    assert [row["alpha"] for row in rows] == [0.01, 0.02, 0.05, 0.1, 0.15]
    taken = found["matched_risk"][0]["alpha"]
    sure = [row for row in rows if row["probability"] >= 0.9 and row["saving_pct"] > 0]
    assert taken == sure[0]["alpha"]
    assert found["alpha"] is None
    assert f"next       stopadvisor calibrate runs/sums --alpha {taken:g}\n" in out
    table = out.partition("What each promise would buy")[2].partition("* The figures")[0]
    assert len([line for line in table.splitlines() if "%" in line]) >= len(rows)
    # The same table costs no look, and a promise that is named has none.
    asked = call.json("runs/sums", "--alpha", f"{taken:g}", *FAST)
    assert asked["alpha"] == taken
    assert "promises" not in asked
    assert asked["matched_risk"] == found["matched_risk"]


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
    assert call("raw.npz", "--quiet", *FAST)[2] == ""


# --- Bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--protocol", "paper", "--serving", "vllm"], "the paper's serving regimes"),
        (["--protocol", "paper", "--loss", "drop"], "counts lost answers alone: leave --loss out"),
        (["--serving", "overlap"], "overlap is called vllm: say --serving vllm"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_requests_are_one_line(call: Call, words: list[str], said: str) -> None:
    assert said in call.refused("raw.npz", *words)


def test_a_target_that_is_not_there_is_told_what_it_may_be(call: Call) -> None:
    said = call.refused("runs/nowhere")
    assert "runs/nowhere: no such file or directory" in said
    for words in ("JSONL workload", "run directory", "raw.npz archive"):
        assert words in said


def test_a_full_disk_is_one_line_and_keeps_the_old_assessment(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("runs/sums", *FAST)
    old = Path("runs/sums/assessment.json").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in call.refused("runs/sums", "--alpha", "0.1", *FAST)
    assert Path("runs/sums/assessment.json").read_bytes() == old


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
    found = call.json(RUN, *FAST, "--alpha", "0.15")
    assert json.loads((RUN / "assessment.json").read_bytes()) == found
    assert found["recommendation"]["policy"] == "full-budget"
    assert any(said in reason for reason in found["recommendation"]["reasons"])
    assert sum(row["count"] for row in found["profile"].values()) == found["split"]["fit"]
    assert (found["matched_risk"][0]["learned"], found["label_savings"]) == (None, [])
    text = call.screen(RUN, *FAST, "--alpha", "0.15")
    assert text.startswith("Don't stop early on vLLM: ")
    assert said[1:] in text  # it begins a sentence here


def test_its_page_says_so_without_the_pictures_of_rules(
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


def test_calibrate_follows_that_advice(call: Call) -> None:
    edit_records(RUN, all_right)
    found = call.json(RUN, *FAST, *CERTIFY, code=3, command="calibrate")
    assert (found["kind"], found["look"]) == ("full-budget", None)
    assert "all forced answers are right" in found["refusal"]["reason"]
