"""`assess`, from the command line to `assessment.json`: fields, blindness, screens, refusals."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.ground.results import to_json
from stopadvisor.rules.serving_profile import BatchSeconds, CostFit, ServingProfile
from stopadvisor.runs.directory import RunDirectory
from tests.material import (
    BUDGETS,
    CERTIFY,
    PLAN,
    Call,
    archive_arrays,
    edit_records,
    looks_of,
    make_run,
    write_archive,
)
from tests.scripted import ScriptedEngine, write_sums

FAST = ["--families", "entropy,confidence"]
"""One side instead of two, in a fraction of the time."""


@pytest.fixture(name="call")
def assessing(call: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    """As `call`, without pictures; there is an archive `raw.npz` too."""
    write_archive(Path("raw.npz"))
    monkeypatch.setattr(
        "stopadvisor.engines.engine_settings.start_engine", lambda options: ScriptedEngine()
    )

    def assess(*words: str | Path, command: str = "assess") -> tuple[int, str, str]:
        pictures = ["--no-report"] if command == "assess" else []  # they take seconds, and a test
        return call(command, *words, *pictures)

    return assess


def assessed(call: Call, *words: str) -> dict[str, Any]:
    code, out, err = call(*words, "--json")
    assert code == 0, out + err
    found: dict[str, Any] = json.loads(out)
    return found


def refused(call: Call, *words: str, command: str = "assess") -> str:
    """The one line of a refusal with exit code 2."""
    code, out, err = call(*words, command=command)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if line.startswith(("stopadvisor: ", "Error: "))]
    assert len(lines) == 1, err
    return lines[0]


# --- The document ---------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["runs/sums", "raw.npz"])
def test_figures_of_a_document_agree_with_each_other(call: Call, target: str) -> None:
    found = assessed(call, target, *FAST)
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


def test_a_run_names_its_model_and_an_archive_none(call: Call) -> None:
    run, archive = (assessed(call, path, *FAST)["workload"] for path in ("runs/sums", "raw.npz"))
    assert (run["model"], run["engine"]) == ("tests/scripted", "scripted")
    assert (run["full_reference"], archive["full_reference"]) == ("natural", "last-checkpoint")
    assert (archive["model"], archive["engine"]) == (None, None)
    assert run["budgets"] == list(BUDGETS)


def test_what_is_printed_is_what_is_written(call: Call) -> None:
    _, out, _ = call("runs/sums", "--json", *FAST)
    assert Path("runs/sums/assessment.json").read_text(encoding="utf-8") == out
    _, again, _ = call("runs/sums", "--json", *FAST)
    assert again == out


def test_the_options_used_stand_in_the_run_and_can_be_used_again(call: Call) -> None:
    _, first, _ = call("runs/sums", "--json", "--alpha", "0.2", *FAST)
    file = Path("runs/sums/stopadvisor.toml")
    written = file.read_text(encoding="utf-8")
    assert tomllib.loads(written)["assess"]["alpha"] == 0.2
    shutil.copy(file, "again.toml")
    assert call("runs/sums", "--config", "again.toml")[:2] == (0, first)
    assert file.read_text(encoding="utf-8") == written


def test_prices_give_money_and_break_evens(call: Call) -> None:
    words = ["runs/sums", "--price", "0.5/0.05/2", "--serving", "prefix-cache", *FAST]
    row = assessed(call, *words)["serving"]["prefix-cache"]
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
    fit = CostFit(request, 0.0, 0.0, (BatchSeconds(1, 1.0),), 0.0)
    profile = ServingProfile.of_fit(
        fit, model="m", engine="vllm", device="here", settings={}, round_trip_seconds=round_trip
    )
    Path("profile.json").write_text(to_json(profile), encoding="utf-8")
    return Path("profile.json")


@pytest.mark.slow
def test_what_a_request_takes_decides_where_to_ask(call: Call) -> None:
    words = ("runs/sums", *FAST, "--serving", "vllm", "--price")
    found = {
        price: assessed(call, *words, str(timed(price)))["serving"]["vllm"] for price in (0.0, 12.0)
    }
    assert found[12.0]["probes"] < found[0.0]["probes"]
    assert 0 < found[12.0]["saving_pct"] < found[0.0]["saving_pct"]
    assert found[0.0]["decoded_saving_pct"] > found[0.0]["saving_pct"] - 1e-9


def test_tokens_are_not_time(call: Call) -> None:
    words = (*FAST, "--serving", "prefix-cache", "--price", str(timed(2.0)))
    found = assessed(call, "runs/sums", "--alpha", "0.15", *words)
    assert found["settings"]["weights"]["unit"] == "seconds"
    row = found["serving"]["prefix-cache"]
    assert found["headline"].startswith(f"Saves {row['saving_pct']:.0f}% of the capacity")
    served = 100 * (1 / (1 - row["saving_pct"] / 100) - 1)
    shown = call("runs/sums", "--alpha", "0.15", *words)[1]
    assert f"the same hardware serves {served:.0f}% more requests" in shown


@pytest.mark.slow
def test_a_rule_that_takes_more_time_is_said_to_save_nothing(call: Call) -> None:
    words = ("runs/sums", *FAST, "--price", str(timed(1000.0)), "--serving")
    found = assessed(call, *words, "prefix-cache")
    assert found["recommendation"]["policy"] == "full-budget"
    assert found["headline"].startswith("Don't stop early")
    # Within the one request that there is, the same tokens are saved as before.
    forked = assessed(call, *words, "kv-fork")
    assert forked["serving"]["kv-fork"]["decoded_saving_pct"] > 0


def test_overlap_is_charged_its_round_trip(call: Call) -> None:
    words = ("runs/sums", *FAST, "--serving", "vllm", "--price")
    near, far = (assessed(call, *words, str(timed(0.0, trip))) for trip in (0.0, 20.0))
    rows = [found["serving"]["vllm"] for found in (near, far)]
    assert far["settings"]["weights"]["round_trip"] == 20
    assert rows[1]["decoded_saving_pct"] < rows[0]["decoded_saving_pct"]


def test_nothing_feasible_is_full_budget_with_nulls(call: Call) -> None:
    found = assessed(call, "runs/sums", "--alpha", "0.001", *FAST)
    advice = found["recommendation"]
    assert (advice["policy"], advice["family"], advice["schedule"]) == ("full-budget", None, None)
    assert found["serving"]["operating_point"] is None
    assert set(found["serving"]["kv-fork"].values()) == {None}
    assert found["fit_saving_lower_pct"] is None
    assert found["matched_risk"][0]["scalar"]["threshold"] is None


# --- Blindness ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "planned"), [([], []), (["--delta", "0.1"], ["--delta", "0.1"]), (FAST, [])]
)
def test_fifty_questions_are_told_how_many_labels_it_takes(
    call: Call, tmp_path: Path, words: list[str], planned: list[str]
) -> None:
    few = make_run(tmp_path / "few", 50)
    _, out, _ = call(few, "--alpha", "0.1", "--no-report", *words)
    text = " ".join(out.split())
    ((found, needed, command),) = re.findall(
        r"labels (\d+) calibration questions cannot certify a loss of at most 10.0%: that takes "
        r"(\d+), none of them lost; `stopadvisor (.*?)`",
        text,
    )
    split = json.loads(Path(few, "assessment.json").read_text())["split"]
    assert int(found) == split["calibration"]
    assert command == "plan --alpha 0.1"
    asked = (*command.split()[1:], "--expected-risk", "0", *planned, "--json")
    code, answer, _ = call(*asked, command="plan")
    assert code == 0
    assert json.loads(answer)["calibration_labels"] == int(needed) > int(found)


@pytest.mark.slow
def test_paper_protocol_on_a_run_needs_a_look(call: Call) -> None:
    line = refused(call, "runs/sums", "--protocol", "paper")
    assert "--open-calibration" in line
    assert "stopadvisor calibrate runs/sums" in line
    assert not Path("runs/sums/assessment.json").exists()
    assert looks_of(Path("runs/sums")) == []

    found = assessed(call, "runs/sums", "--protocol", "paper", "--open-calibration")
    assert found["protocol"] == "paper"
    (look,) = looks_of(Path("runs/sums"))
    assert look.asked["protocol"] == "paper"
    assert len(look.questions) == RunDirectory.load(Path("runs/sums")).parts(
        RunDirectory.load(Path("runs/sums")).table()
    ).tolist().count(1)

    # Open is open: neither protocol nor flag costs a second look.
    assessed(call, "runs/sums", "--protocol", "paper")
    assert len(looks_of(Path("runs/sums"))) == 1

    # Settings that stood before are charged; others could have been chosen by what was shown.
    assert "showed their outcomes (paper)" in refused(
        call, "runs/sums", *FAST, *CERTIFY, command="calibrate"
    )
    _, out, _ = call("runs/sums", "--json", *CERTIFY, command="calibrate")
    assert json.loads(out)["confidence"] == pytest.approx(0.9)


def test_paper_protocol_is_open_after_calibrate(call: Call) -> None:
    call("runs/sums", "--json", *FAST, *CERTIFY, command="calibrate")
    assessed(call, "runs/sums", "--protocol", "paper")
    assert len(looks_of(Path("runs/sums"))) == 1


@pytest.mark.slow
def test_what_is_shown_of_an_archive_is_charged(call: Call) -> None:
    for _ in range(2):
        assessed(call, "raw.npz", "--protocol", "paper", "--alpha", "0.3")  # needs no leave
    (folder,) = Path("runs").glob("raw-archive-*")
    (look,) = looks_of(folder)
    assert (look.asked["protocol"], look.opened) == ("paper", True)
    line = refused(call, "raw.npz", *CERTIFY, "--alpha", "0.25", command="calibrate")
    assert "showed their outcomes (paper)" in line
    _, out, _ = call("raw.npz", "--json", *CERTIFY, "--alpha", "0.3", command="calibrate")
    found = json.loads(out)
    assert (found["alpha"], found["look"]["number"]) == (0.3, 2)
    assert found["confidence"] == pytest.approx(0.9)


# --- Workloads and regrading ----------------------------------------------------------------------


def test_a_workload_is_probed_first(call: Call, tmp_path: Path) -> None:
    file = write_sums(tmp_path / "more.jsonl", 150)
    code, out, err = call(str(file), "--budgets", "0,16,48", "--max-think", "256", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["run"].startswith("runs/more-scripted-")
    assert found["workload"]["budgets"] == [0, 16, 48]
    assert "task 'numeric' guessed from gold for 150 questions" in err
    assert found["split"]["test"] == 0, "so few questions certify better without a test part"
    assert "--split" not in err


def test_paper_protocol_on_a_workload_is_refused_too(call: Call, tmp_path: Path) -> None:
    file = write_sums(tmp_path / "more.jsonl", 150)
    words = [str(file), "--budgets", "0,16,48", "--max-think", "256", "--no-preflight"]
    assert "--open-calibration" in refused(call, *words, "--protocol", "paper")


def test_regrading_takes_the_workloads_gold_and_tells_no_outcome(call: Call) -> None:
    before = assessed(call, "runs/sums", *FAST)["profile"]

    def spoil(row: dict[str, Any], part: str) -> None:
        for checkpoint in row["checkpoints"]:
            checkpoint["correct"] = False
            checkpoint["normalized"] = "?"

    edit_records(Path("runs/sums"), spoil)
    code, _, err = call("runs/sums", "--regrade", *FAST)
    assert code == 0, err
    assert "graded runs/sums again" in err
    assert not re.search(r"again.*\d", err)
    assert assessed(call, "runs/sums", *FAST)["profile"] == before


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
    assert named in refused(call, *words)


def test_the_split_of_an_archive_is_drawn_once(call: Call) -> None:
    found = assessed(call, "raw.npz", "--split", "40/60/0", *FAST)
    assert found["split"]["test"] == 0
    assert assessed(call, "raw.npz", *FAST)["split"] == found["split"]
    assert "never drawn again" in refused(call, "raw.npz", "--split", "50/50/0")
    other = assessed(call, "raw.npz", "--split", "50/50/0", "--out", "elsewhere", *FAST)
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
    asked = assessed(call, "runs/sums", "--alpha", f"{taken:g}", *FAST)
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


def test_cut_traces_are_remarked(call: Call, tmp_path: Path) -> None:
    make_run(tmp_path / "cut", 400, plan=replace(PLAN, max_think=100))
    found = assessed(call, "cut", *FAST)
    assert found["workload"]["truncated_share"] > 0.05
    assert any("cut off by max-think" in remark for remark in found["remarks"])


# --- Bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--alpha", "0"], "alpha must be in (0, 1), got 0.0"),
        (["--alpha", "1"], "alpha must be in (0, 1), got 1.0"),
        (["--alpha", "nan"], "alpha must be in (0, 1), got nan"),
        (["--delta", "1.5"], "delta must be in (0, 1), got 1.5"),
        (["--families", "entropy,magic"], "families must be among"),
        (["--price", "1/2"], "three prices"),
        (["--price", "1/2/nan"], "weights must be finite"),
        (["--protocol", "paper", "--serving", "vllm"], "the paper's serving regimes"),
        (["--serving", "overlap"], "overlap is called vllm: say --serving vllm"),
        (["--protocol", "paper", "--alpha", "2"], "alpha must be in (0, 1), got 2.0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_requests_are_one_line(call: Call, words: list[str], said: str) -> None:
    assert said in refused(call, "raw.npz", *words)


def test_a_target_that_is_not_there_is_told_what_it_may_be(call: Call) -> None:
    said = refused(call, "runs/nowhere")
    assert "runs/nowhere: no such file or directory" in said
    for words in ("JSONL workload", "run directory", "raw.npz archive"):
        assert words in said


_ONE = np.ones((200, 6), dtype=np.int64)
_NAN = np.where(np.arange(1200).reshape(200, 6) == 7, np.nan, -0.1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"correct": _ONE}, "one class of labels only"),
        ({"correct": 0 * _ONE}, "one class of labels only"),
        ({"correct": 2 * _ONE}, "must hold 0 and 1 only"),
        ({"conf_ent": None}, "array 'conf_ent' is missing"),
        ({"ans": archive_arrays()["ans"][:, :3]}, "array 'ans' must have shape (200, 6)"),
        ({"budgets": np.array([5, 4, 3, 2, 1, 0])}, "budgets must be 6 strictly increasing"),
        ({"conf_lp": _NAN}, "array 'conf_lp' must hold finite numbers only"),
        ({"conf_lp": np.full((200, 6), "x")}, "array 'conf_lp' must hold finite numbers only"),
        ({"correct": np.array(3)}, "must have shape (N, m)"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_bad_archives_are_one_line(call: Call, changes: dict[str, Any], said: str) -> None:
    write_archive(Path("bad.npz"), **changes)
    line = refused(call, "bad.npz")
    assert said in line
    assert "bad.npz" in line or "budgets" in line


def test_a_file_that_is_no_archive_is_one_line(call: Call) -> None:
    Path("text.npz").write_text("hello", encoding="utf-8")
    assert "text.npz" in refused(call, "text.npz")
    assert "missing.npz" in refused(call, "missing.npz")
    assert "not a run directory" in refused(call, ".")


def test_too_few_questions_for_the_split_are_one_line(call: Call) -> None:
    arrays = archive_arrays(30)
    write_archive(Path("few.npz"), **arrays)
    assert "part needs at least" in refused(call, "few.npz")


def test_one_class_of_labels_in_a_run_is_advice(call: Call) -> None:
    def spoil(row: dict[str, Any], part: str) -> None:
        for checkpoint in row["checkpoints"]:
            checkpoint["correct"] = False

    edit_records(Path("runs/sums"), spoil)
    code, out, _ = call("runs/sums", "--json")
    assert code == 0
    advice = json.loads(out)["recommendation"]
    assert advice["policy"] == "full-budget"
    assert "all forced answers are wrong" in advice["reasons"][-1]


def test_scores_that_are_nan_in_a_run_are_one_line(call: Call) -> None:
    def spoil(row: dict[str, Any], part: str) -> None:
        row["checkpoints"][2]["mean_entropy"] = float("nan")

    edit_records(Path("runs/sums"), spoil)
    assert "not a line of JSON: NaN is no number of JSON" in refused(call, "runs/sums")


def test_a_place_that_cannot_be_written_is_one_line(call: Call) -> None:
    Path("runs/sums/assessment.json").mkdir()
    assert "cannot write" in refused(call, "runs/sums", *FAST)
    shutil.rmtree("runs")
    Path("runs").write_text("in the way", encoding="utf-8")
    assert "cannot make runs" in refused(call, "raw.npz")


def test_a_full_disk_is_one_line_and_keeps_the_old_assessment(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("runs/sums", *FAST)
    old = Path("runs/sums/assessment.json").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in refused(call, "runs/sums", "--alpha", "0.1", *FAST)
    assert Path("runs/sums/assessment.json").read_bytes() == old
