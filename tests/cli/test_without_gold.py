"""A workload without gold, from the assessment to a policy under which few replies differ."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.cli.main import main
from stopadvisor.policy.frozen import load_policy
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.prices import default_settings
from stopadvisor.runs.sources import open_source
from tests.material import Call, edit_records, looks_of, make_run, write_archive
from tests.schemas import check_valid

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_draws")]

RUN = Path("run")
FAST = ("--alpha", "0.1", "--families", "confidence")


@pytest.fixture(scope="module")
def certified_run(run_without_gold: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run, calibrated at alpha 0.1, with what was printed in a file `screen.txt`."""
    path = tmp_path_factory.mktemp("certified") / "run"
    shutil.copytree(run_without_gold, path)
    with redirect_stdout(StringIO()) as out:
        assert main(["calibrate", str(path), *FAST, "--despite", "advice", "--quiet"]) == 0
    (path / "screen.txt").write_text(out.getvalue(), encoding="utf-8")
    return path


@pytest.fixture(name="call")
def with_run(call: Call, run_without_gold: Path) -> Call:
    shutil.copytree(run_without_gold, RUN)
    return call


@pytest.fixture
def certified(call: Call, certified_run: Path) -> dict[str, Any]:
    """The calibration of `run`, which was calibrated at alpha 0.1."""
    shutil.copytree(certified_run, RUN, dirs_exist_ok=True)
    found: dict[str, Any] = json.loads((RUN / "calibration.json").read_bytes())
    return found


def as_read(text: str) -> str:
    """A screen without its line breaks."""
    return " ".join(text.split())


def test_a_loss_that_takes_gold_is_not_assessed_without_it(call: Call) -> None:
    err = call.refused("assess", RUN, "--loss", "lost")
    assert "run: a limit on lost takes gold to assess, and the questions have none" in as_read(err)


def test_full_thinking_is_held_against_itself(certified: dict[str, Any]) -> None:
    records = RunDirectory.load(RUN).records()
    answers = {(r.id, r.sample): r.natural_answer for r in records}
    source = open_source(RUN)
    fit = set(source.part("fit").keys)
    twice = {r.id for r in records if r.sample == 1 and r.key in fit}
    differing = sum(answers[name, 0] != answers[name, 1] for name in twice)
    assert 0 < differing < len(twice)
    repeats = certified["repeats"]
    assert (repeats["questions"], repeats["differing"]) == (len(twice), differing)
    assert repeats["share"] == pytest.approx(differing / len(twice))
    assert repeats["ci95"][0] < repeats["share"] < repeats["ci95"][1]
    assert certified["certificate"]["alpha"] == 0.1  # nothing is subtracted


def test_calibrate_promises_that_few_replies_differ(call: Call, certified: dict[str, Any]) -> None:
    shown = as_read((RUN / "screen.txt").read_text(encoding="utf-8"))
    assert "at most 10% of replies differ from what full thinking would have said" in shown
    assert "full thinking gave another answer to" in shown
    assert "accuracy" not in shown
    content = load_policy(RUN / "policy.joblib").content
    certificate = content["certificate"]
    assert (certificate["loss"], content["expected"]["graded_by"]) == ("differs", "agreement")
    # Counted by hand: the replies at the exported stop that are not the natural answer.
    source = open_source(RUN)
    rows = source.part("calibration").unseal()
    rows = rows.take(rows.samples == 0)
    columns = [rows.budgets.tolist().index(at) for at in certified["schedule"]]
    sure = np.exp(rows.mean_logprob[:, columns]) >= certified["threshold"]
    stops = sure & rows.live[:, columns]
    first = np.array(columns)[stops.argmax(axis=1)]
    differs = rows.answer_codes[np.arange(rows.n_questions), first] != rows.full_codes
    assert certified["family"] == "confidence"
    assert certificate["losses"] == int((stops.any(axis=1) & differs).sum()) > 0
    assert certificate["n"] == rows.n_questions
    _, out, _ = call("inspect", RUN / "policy.joblib")
    assert "accuracy" not in out


# --- Gold for some, probes from elsewhere ---------------------------------------------------------


def forget_gold(*parts: str) -> Callable[[dict[str, Any], str], None]:
    """For `edit_records`: what the records of these parts would be without gold."""

    def edit(row: dict[str, Any], part: str) -> None:
        if part in parts:
            row |= {"gold": None, "natural_correct": None}
            for checkpoint in row["checkpoints"]:
                checkpoint["correct"] = None

    return edit


def test_a_part_without_gold_leaves_the_others_theirs(call: Call) -> None:
    made = make_run(Path("mixed"), 400, fractions=(0.4, 0.6, 0.0))
    other = shutil.copytree(made, Path("apart") / "other")
    edit_records(made, forget_gold("calibration"))
    found = call.json("assess", "mixed", *FAST)
    assert found["workload"]["graded_by"] == "gold"  # the fit questions', which are shown
    assert found["settings"]["loss"] == "differs"  # what the others allow to promise
    assert 0.5 < found["fit_full_accuracy"] < 1
    assert "label_needs" not in found
    found = call.json("calibrate", "mixed", "--alpha", "0.1", "--despite", "advice")
    assert (found["graded_by"], found["certificate"]["loss"]) == ("agreement", "differs")
    edit_records(other, forget_gold("fit"))
    found = call.json("calibrate", other, *FAST, "--despite", "advice")
    assert found["graded_by"] == "gold"
    assert "loss" not in found["certificate"]


def test_imported_probes_and_archives_need_no_labels(call: Call) -> None:
    rows = (RUN / "probes.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    Path("recorded.jsonl").write_text("".join(rows[:200]), encoding="utf-8")
    found = call.json("import", "probes", "recorded.jsonl", "-o", "imported", "--max-think", "256")
    check_valid("import", found)
    assert found["model"] is None
    assert found["budgets"]
    assert (found["n_ungraded"], found["n_graded"]) == (found["n_traces"], 0)
    found = call.json("assess", "imported", *FAST)
    assert found["workload"]["graded_by"] == "agreement"
    write_archive(Path("raw.npz"), correct=None)
    found = call.json("assess", "raw.npz", *FAST)
    assert (found["workload"]["graded_by"], found["settings"]["loss"]) == ("agreement", "differs")
    err = call.refused("assess", "raw.npz", "--protocol", "paper")
    assert err == (
        "stopadvisor: the paper's protocol needs gold for every question, and some of these have "
        "none"
    )


# --- Fresh questions without gold -----------------------------------------------------------------


@pytest.mark.usefixtures("certified")
def test_verify_counts_replies_that_differ(call: Call) -> None:
    make_run(Path("fresh"), 900, gold=False)  # the first 500 made the policy
    policy = RUN / "policy.joblib"
    found = call.json("verify", policy, "fresh")
    assert (found["n"], found["n_met_before"]) == (400, 500)
    assert (found["loss"], found["graded_by"]) == ("differs", "agreement")
    assert found["losses"] == round(400 * (1 - found["accuracy"]))
    assert found["lower"] < found["risk"] < found["upper"]
    assert "of 400 fresh replies differ, promise 10%" in found["headline"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("calibrate", "--alpha", "0.1", "--loss", "drop"), "needs gold for every"),
        (("calibrate",), "may lose a right answer, or without gold get another reply"),
        (("assess", "--protocol", "paper", "--open-calibration"), "needs gold for every question"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_takes_gold_is_one_line_and_no_look(
    call: Call, words: tuple[str, ...], said: str
) -> None:
    assert said in call.refused(words[0], RUN, *words[1:])
    assert not looks_of(RUN)


@pytest.mark.parametrize("command", ["assess", "calibrate"])
def test_the_help_names_the_loss_that_is_limited_without_gold(call: Call, command: str) -> None:
    loss = default_settings(open_source(RUN))["loss"]
    shown = call.screen("--help-all" if command == "assess" else "--help", command=command)
    assert f"[default: (lost; no gold: {loss}; ladder: drop)]" in shown
