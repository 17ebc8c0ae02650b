"""`study`: its documents and files, what it skips, and that closed calibration stays closed."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.ground.errors import OutputError
from stopadvisor.runs.sources import Source
from stopadvisor.studies.registry import STUDIES, outline_of
from stopadvisor.studies.tables import StudyOptions, StudyReport
from tests.material import (
    PLAN,
    Call,
    archive_arrays,
    keep_studies,
    looks_of,
    make_run,
    write_archive,
)
from tests.schemas import check_valid

QUICK = ["--set", "resamples=100"]


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("studied") / "sums", 120)


@pytest.fixture(name="call")
def studying(call: Call, probed: Path) -> Call:
    """`study` in a folder with ``runs/sums`` and ``raw.npz``."""
    shutil.copytree(probed, "runs/sums")
    write_archive(Path("raw.npz"), **archive_arrays(150, 6))
    return call.of("study")


def studied(call: Call, *words: str) -> dict[str, Any]:
    code, out, err = call(*words, *QUICK, "--json", "--quiet")
    assert code == 0, out + err
    assert err == ""
    found: dict[str, Any] = json.loads(out, parse_constant=pytest.fail)
    return found


# --- The table of studies -------------------------------------------------------------------------


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_of_the_registry_has_its_outline(name: str) -> None:
    assert outline_of(name).study == name
    assert STUDIES[name].help.endswith(".")


def test_list_names_every_study(call: Call) -> None:
    found = call.json("list")
    check_valid("study-list", found)
    assert [row["name"] for row in found["studies"]] == list(STUDIES)
    assert all(list(row) == ["name", "help", "needs", "options"] for row in found["studies"])
    _, screen, _ = call("list")
    assert all(name in screen for name in STUDIES)


# --- One study ------------------------------------------------------------------------------------


def test_a_study_prints_its_document_and_writes_it_down(call: Call, tmp_path: Path) -> None:
    found = studied(call, "frontier", "raw.npz", "--alpha", "0.2")
    check_valid("study", found)
    options = found["options"]
    assert (found["study"], options["resamples"], options["alpha"]) == ("frontier", 100, 0.2)
    (folder,) = (tmp_path / "runs").glob("raw-archive-*")
    assert json.loads((folder / "studies" / "frontier.json").read_text()) == found
    for table in found["tables"]:
        name = f"frontier.{table['name']}.csv"
        text = (folder / "studies" / name).read_text()
        header, *rows = csv.reader(text.splitlines())
        assert header == [column["name"] for column in table["columns"]]
        assert rows == [["" if v is None else str(v) for v in row] for row in table["rows"]]


def test_two_runs_stand_in_one_table(call: Call) -> None:
    write_archive(Path("other.npz"), **archive_arrays(150, 6, seed=1))
    found = studied(call, "frontier", "raw.npz", "other.npz")
    assert found["tables"][0]["columns"][0]["name"] == "run"
    assert [row[0] for row in found["tables"][0]["rows"]] == found["runs"]
    assert len(set(found["runs"])) == 2


def test_the_run_assessed_last_is_taken_where_none_is_named(call: Call) -> None:
    assert "no assessed run" in call.refused("frontier")
    Path("runs/sums/assessment.json").write_text("{}")
    code, _, err = call("ablation", *QUICK)
    assert code == 0, err
    assert "studying runs/sums" in err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["transfer", "raw.npz"], "needs two runs or more, got 1"),
        (["frontier", "raw.npz", "--set", "paper=1"], "study frontier has no option 'paper'"),
        (["all", "raw.npz", "--set", "pope=1"], "no study has an option 'pope'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_studied_is_exit_2(call: Call, words: list[str], part: str) -> None:
    assert part in " ".join(call.refused(*words).split())


# --- All of them ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_runs_what_the_data_allow(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_studies(monkeypatch, "frontier", "map", "transfer", "cues", "temperature", "rivals")
    write_archive(Path("small.npz"), **archive_arrays(90, 5))
    found = studied(call, "all", "small.npz", "--set", "paper=1")
    assert list(found) == ["schema", "studies", "skipped"]
    check_valid("study-all", found)
    done = [document["study"] for document in found["studies"]]
    skipped = {row["study"]: row["reason"] for row in found["skipped"]}
    assert set(skipped) == {"transfer", "cues", "temperature"}
    assert "two runs or more" in skipped["transfer"]
    assert [n for n in STUDIES if n not in (*skipped, "rivals")] == done  # which takes minutes
    extra = {document["study"]: document["options"]["extra"] for document in found["studies"]}
    assert extra["map"] == {"paper": "1"}
    assert extra["frontier"] == {}


def _fake(monkeypatch: pytest.MonkeyPatch, names: Sequence[str], broken: str = "") -> None:
    """Studies that return at once; one may have a bug."""

    def run(name: str, sources: Sequence[Source], options: StudyOptions) -> StudyReport:
        if name == broken:
            raise ZeroDivisionError("one over nought")
        return StudyReport(
            study=name,
            paper="",
            protocols=("paper",),
            runs=(),
            options=options,
            tables=(),
            remarks=(),
        )

    keep_studies(monkeypatch, *names)
    monkeypatch.setattr("stopadvisor.cli.study.run_study", run)


def test_runs_that_allow_no_study_are_exit_2(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(Path("nine.npz"), **archive_arrays(9, 4))
    keep_studies(monkeypatch, "frontier", "proxies")
    err = call.refused("all", "nine.npz", "--quiet")
    assert "these runs allow no study; frontier: nine-archive-" in err
    assert "needs at least 10 questions, got 9" in err


def test_a_bug_in_one_study_leaves_the_others(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(monkeypatch, ["frontier", "proxies", "map"], broken="proxies")
    found = call.json("all", "raw.npz", code=1)
    assert [document["study"] for document in found["studies"]] == ["frontier", "map"]
    assert found["skipped"] == [
        {"study": "proxies", "reason": "internal error: ZeroDivisionError: one over nought"}
    ]


def test_a_study_that_cannot_be_written_is_no_skipped_one(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OutputError("cannot write: No space left on device")

    _fake(monkeypatch, ["frontier", "map"])
    monkeypatch.setattr("stopadvisor.cli.study.write_study", full)
    assert "No space left on device" in call.refused("all", "raw.npz")


# --- What calibration questions show --------------------------------------------------------------


def test_opening_calibration_is_a_look_and_shows_all_questions(call: Call) -> None:
    closed = studied(call, "frontier", "runs/sums")
    opened = studied(call, "frontier", "runs/sums", "--open-calibration")
    (look,) = looks_of(Path("runs/sums"))
    assert look.asked["study"] == "frontier"
    assert closed["tables"][0]["columns"][1]["name"] == "questions"
    questions = [found["tables"][0]["rows"][0][1] for found in (closed, opened)]
    assert questions[0] < questions[1] == 120
    assert any("fit questions alone" in remark for remark in closed["remarks"])
    assert not any("fit questions alone" in remark for remark in opened["remarks"])
    studied(call, "ablation", "runs/sums", "--open-calibration")
    assert len(looks_of(Path("runs/sums"))) == 1  # open already


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["transfer"], "needs two runs"),
        (["failure-cases", "--set", "case=2"], "has no option 'case'"),
    ],
)
def test_a_request_that_no_study_takes_spends_no_look(
    call: Call, words: list[str], part: str
) -> None:
    name, *options = words
    assert part in call.refused(name, "runs/sums", *options, "--open-calibration")
    assert looks_of(Path("runs/sums")) == []


@pytest.mark.parametrize("name", ["frontier", "all"])
def test_an_archive_without_gold_spends_no_look_on_the_paper(call: Call, name: str) -> None:
    arrays = archive_arrays()
    del arrays["correct"]
    np.savez("bare.npz", **arrays)
    assert "takes gold for every question" in call.refused(name, "bare.npz")
    (folder,) = Path("runs").glob("bare-archive-*")
    assert looks_of(folder) == []


def test_a_run_without_a_grid_spends_no_look_on_the_paper(call: Call) -> None:
    plan = replace(PLAN, budgets=(32, 64, 96), schedule="stride", every=32)
    run = make_run(Path("strides"), 60, plan=plan)
    for words in (["study", "frontier"], ["study", "all"], ["assess", "--protocol", "paper"]):
        command, *others = words
        line = call.of(command).refused(*others, run, "--open-calibration")
        assert "needs one grid for all questions" in line
    assert looks_of(run) == []
