"""`label`: questions one at a time, sheets, and what `calibrate` makes of few labels."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.assessment.settings import SettingsOverrides
from stopadvisor.certification.certify import CertifyRequest
from stopadvisor.cli.label import ask, begin, finish
from stopadvisor.ground.progress import Progress
from stopadvisor.probes.records import ProbeRecord
from stopadvisor.report.progress import LineProgress
from stopadvisor.report.screen import draw
from stopadvisor.report.sheets.plan import label_sheet
from stopadvisor.runs.directory import RunDirectory
from tests.material import Call, forget_looks, make_run
from tests.schemas import check_valid

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_draws")]

ASK = ("--alpha", "0.05", "--families", "confidence", "--despite", "advice", "--quiet")
REQUEST = CertifyRequest(
    SettingsOverrides(alpha=0.05, families=("confidence",)), despite=("advice",)
)


@pytest.fixture(scope="session")
def unlabelled_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 sums without gold."""
    path = tmp_path_factory.mktemp("unlabelled") / "run"
    return make_run(path, 400, gold=False, fractions=(0.4, 0.6, 0.0))


@pytest.fixture
def folder(unlabelled_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(unlabelled_run, "run"))


@pytest.fixture
def call(folder: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    return Call(capsys)


def truth(question: str) -> str:
    a, b = re.findall(r"\d+", question)
    return str(int(a) + int(b))


class Labeller:
    """Reads what is shown, and presses keys."""

    def __init__(self, most: int = 1000, choose: Callable[[str, list[str]], str] | None = None):
        self.err = StringIO()
        self.asked: list[str] = []
        self.most = most
        self.choose = choose or self.right
        self.line = ""

    def right(self, question: str, answers: list[str]) -> str:
        """The key of the right answer, or n with the answer typed."""
        self.line = truth(question)
        return str(answers.index(self.line) + 1) if self.line in answers else "n"

    def __call__(self) -> str:
        shown = self.err.getvalue().rpartition("\nQuestion ")[2]
        if len(self.asked) >= self.most:
            return "q"
        self.asked.append(shown.partition("\n")[0])
        question = re.search(r"What is (.*)\?", shown)
        assert question is not None
        return self.choose(question[1], re.findall(r"\[\d\] +(\S+)", shown))

    def label(self, *, planned: int | None = None, labeller: str = "") -> str:
        request = replace(REQUEST, labels=planned)
        begun = begin(Path("run"), request, LineProgress(self.err))
        ask(begun, labeller, self.err, self, lambda: self.line)
        draw(label_sheet(finish(begun, Path("run"), None, 150)), out := StringIO())
        return out.getvalue()


def labels() -> list[dict[str, Any]]:
    return [json.loads(row) for row in Path("run/labels.jsonl").read_text().splitlines()]


def log() -> list[dict[str, Any]]:
    return [json.loads(row) for row in Path("run/looks.jsonl").read_text().splitlines()]


def calibrated(call: Call, *words: str) -> dict[str, Any]:
    code, out, err = call("calibrate", "run", *ASK, "--loss", "lost", "--json", *words)
    assert code in (0, 3), err
    found: dict[str, Any] = json.loads(out)
    check_valid("calibrate", found)
    return found


# --- The terminal ---------------------------------------------------------------------------------


def test_few_labels_are_asked_for_and_certify(call: Call) -> None:
    before = calibrated(call)
    labeller = Labeller()
    said = labeller.label()
    n = len(labeller.asked)
    assert 5 < n < 100
    assert "no further label can change what is certified" in said
    # The saving is named for whose it is, `calibrate` shows another.
    by_fit = re.search(r"^(.*) Fit questions put the saving at ([\d.]+)%", said.replace("\n", " "))
    assert by_fit is not None
    assert by_fit[1] == "These labels certify at most 5.0% lost."
    assert "`calibrate` measures it again" in said
    # Nothing is left for a sheet, so it leads on.
    _, exported, _ = call("label", "run", *ASK, "--export", "sheet.csv")
    assert "nothing: no question is left to ask" in exported
    assert "next  " in exported
    options = "--alpha 0.05 --families confidence --despite advice --loss lost"
    assert f"stopadvisor calibrate run {options}\n" in exported
    found = calibrated(call)
    assert by_fit[2] == f"{found['expected']['fit_total_saving_pct']:.1f}"
    assert (before["certified"], found["certified"]) == (False, True)
    # It failed without labels; with them it is the same look, which certifies after all.
    assert found["look"] == before["look"] | {"opened": True}
    results = [row["certified"] for row in log() if "certified" in row]
    assert results == [False, True]
    assert "a reply equal in normal form" in found["certificate"]["claim"]
    assert found["certificate"]["labelled"] == n
    assert not any("looked at before" in remark for remark in found["remarks"])
    assert found["labels"] == before["labels"] | {
        "asked": n, "used": n, "more_labels": 0, "more_saving_pp": 0.0
    }  # fmt: skip


def test_each_answer_is_on_disk_before_the_next_question(call: Call) -> None:
    labeller = Labeller()

    def kill(question: str, answers: list[str]) -> str:
        if len(labeller.asked) == 4:
            raise KeyboardInterrupt
        return labeller.right(question, answers)

    labeller.choose = kill
    with pytest.raises(KeyboardInterrupt):
        labeller.label()
    assert [row["id"] for row in labels()] == labeller.asked[:3]
    # The same command goes on with the question that was open.
    again = Labeller(most=1)
    again.label()
    assert again.asked == labeller.asked[3:]
    assert "3 questions labelled" in again.err.getvalue()


def test_keys(call: Call) -> None:
    keys, typed = iter("x9u1cnn"), iter(["", " 77 "])
    labeller = Labeller(most=7)

    def press(question: str, answers: list[str]) -> str:
        key = next(keys)
        if key == "n":
            labeller.line = next(typed)
        return key

    labeller.choose = press
    labeller.label()
    first, second, third = labels()
    asked = labeller.asked
    assert (asked[:4], asked[4:]) == ([first["id"]] * 4, [second["id"], *[third["id"]] * 2])
    assert (second["gold"], third["gold"]) == (None, "77")
    shown = labeller.err.getvalue()
    assert shown.count("That is not an answer of kind") == 1
    assert "There is no label to undo." in shown
    assert shown.count("n, c, u or q.") == 2
    # Undo asks the last one again, also in a later session.
    undone = Labeller(most=1, choose=lambda question, answers: "u")
    undone.label()
    assert labels()[-1] | {"created": ""} == {
        "run": first["run"], "id": third["id"], "key": third["key"], "labeller": "",
        "created": "", "withdrawn": True,
    }  # fmt: skip
    assert third["id"] in undone.err.getvalue().rpartition("\nQuestion ")[2]


def test_without_a_label_none_is_said_to_certify(call: Call) -> None:
    said = " ".join(call("label", "run", *ASK, "--export", "sheet.csv")[1].split())
    assert said.startswith("The run without labels certifies ")
    assert "0 used of 0 asked for" in said
    assert Labeller(most=1).label().startswith("These labels certify ")


def test_nobody_is_told_which_answer_a_stop_would_give(call: Call) -> None:
    begun = begin(Path("run"), REQUEST, Progress())
    first = []
    orders, seen = dict[str, list[str]](), list[list[str]]()
    for row, name in enumerate(begun.labelling.questions.ids):
        record = begun.records[name]
        assert isinstance(record, ProbeRecord)
        orders[name] = answers = list(begun.labelling.answers(row, record))
        if len(answers) > 1:
            first.append((record.natural_answer or "").endswith(answers[0]))
    assert len(first) > 50
    assert 0.35 < np.mean(first) < 0.65

    def unsure(question: str, answers: list[str]) -> str:
        seen.append(answers)
        return "c"

    labeller = Labeller(most=3, choose=unsure)
    labeller.label()
    assert seen == [orders[name] for name in labeller.asked]
    asked = labeller.err.getvalue().partition("\nQuestion ")[2]
    assert not re.search("stop|full|natural|early", asked.replace("question", ""))


def test_two_labellers_and_where_they_disagree(call: Call) -> None:
    ann, bob = Labeller(most=12), Labeller(most=12)
    ann.label(labeller="ann")

    def mistaken(question: str, answers: list[str]) -> str:
        key = bob.right(question, answers)
        if len(bob.asked) > 2:
            return key
        bob.line = "12345"
        return "n"

    bob.choose = mistaken
    said = bob.label(labeller="bob")
    assert bob.asked[:2] == ann.asked[:2]  # bob sees nothing of what ann said
    assert re.search(r"labellers +ann 12, bob 12", said)
    for name in ann.asked[:2]:
        assert name in said.partition("two answers  ")[2].partition("\n")[0]
    found = calibrated(call)["labels"]
    assert found["disagreeing"] == 2
    assert found["asked"] == found["used"] + 2


def takes_keys(terminal: int) -> bool:
    """Whether it gives each key at once, instead of lines."""
    return not termios.tcgetattr(terminal)[3] & termios.ICANON


def test_a_terminal_takes_keys(folder: Path) -> None:
    """The command itself, at a terminal of its own: keys without Enter, and what is typed."""
    ours, its = pty.openpty()
    words = [sys.executable, "-m", "stopadvisor", "label", "run", *ASK, "--json"]
    with subprocess.Popen(
        words, stdin=its, stdout=subprocess.PIPE, stderr=its, env=os.environ | {"TERM": "dumb"}
    ) as process:
        os.close(its)
        shown = b""
        for wanted, by_key, keys in (
            (b"labelled, about", True, b"1"),
            (b"1 question labelled", True, b"n"),
            (b"right answer", False, b"17\n"),
            (b"2 questions labelled", True, b"q"),
        ):
            until = time.monotonic() + 60
            # What is typed before the terminal gives single keys is thrown away.
            while wanted not in shown or takes_keys(ours) != by_key:
                assert time.monotonic() < until, shown
                if select.select([ours], [], [], 0.05)[0]:
                    shown += os.read(ours, 65_536)
            shown = b""
            os.write(ours, keys)
        assert process.stdout is not None
        found = json.loads(process.stdout.read())
    os.close(ours)
    assert process.returncode == 0
    assert found["labels"]["asked"] == 2
    assert [row["gold"] for row in labels()][1] == "17"


def test_planned_labels_settle_what_counts(call: Call) -> None:
    labeller = Labeller()
    said = labeller.label(planned=10)
    assert 3 < len(labeller.asked) < 18
    found = calibrated(call)  # knows the number by the log
    certificate = found["certificate"]
    assert 0 < certificate["labelled"] <= len(labeller.asked)
    assert certificate["n"] == 233
    assert certificate["planned_labels"] == 6  # as fit questions prefer
    assert certificate["losses"] <= min(certificate["differing"], 6)
    assert "first 6, in an order fixed beforehand, were labelled" in certificate["claim"]
    assert "233 calibration questions; of the replies that differ the first 6 labelled" in " ".join(
        said.split()
    )
    assert (found["look"]["number"], sum("asked" in row for row in log())) == (1, 1)
    assert "look 1 at these questions was taken with --labels 10, and which labels" in call.refused(
        "label", "run", *ASK, "--labels", "20", "--export", "none.jsonl"
    )
    assert not Path("none.jsonl").exists()


# --- calibrate ------------------------------------------------------------------------------------


def test_gold_that_came_with_the_workload_is_used(call: Call) -> None:
    before = calibrated(call)
    # Every third calibration question has gold: nobody need be asked about those.
    rows = [json.loads(line) for line in Path("run/probes.jsonl").read_text().splitlines()]
    directory = RunDirectory.load(Path("run"))
    workload = Path(directory.manifest["workload"]["path"]).read_text().splitlines()
    sums = {row["id"]: row["question"] for row in map(json.loads, workload)}
    for row in rows[::3]:
        gold = truth(sums[row["id"]])
        row["gold"] = gold
        row["natural_correct"] = (row["natural_answer"] or "").endswith(f" {gold}")
        for checkpoint in row["checkpoints"]:
            checkpoint["correct"] = checkpoint["normalized"] == gold
    Path("run/probes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    forget_looks(Path("run"))
    found = calibrated(call)
    assert found["labels"]["workload"] > 0
    assert found["labels"]["more_labels"] < before["labels"]["more_labels"]
