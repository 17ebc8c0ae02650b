"""Gold that people typed, in a run and on sheets."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.ground.errors import OutputError, ProbeError, WorkloadError
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.labels import LabelFile, LabelSheet, read_sheet, write_sheet

KEYS = {"q1": "k1", "q2": "k2", "q3": "k3"}
LONG = "9" * 10_000
"""Errors shorten it."""


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path, {"id": "1a2b3c4d"})


@pytest.fixture
def labels(run: RunDirectory) -> LabelFile:
    return LabelFile(run, KEYS)


def test_each_label_is_a_line_and_a_withdrawn_one_no_longer_counts(labels: LabelFile) -> None:
    labels.add({"q1": "12"})
    first = labels.path.read_bytes()
    labels.add({"q2": None})
    labels.add({"q1": "12"}, "bob")
    labels.withdraw("q1")
    labels.add({"q1": "13"})
    assert labels.read() == {"": {"q1": "13", "q2": None}, "bob": {"q1": "12"}}
    assert labels.path.read_bytes().startswith(first)
    row = json.loads(first)
    created = row.pop("created")
    assert created.endswith("+00:00")
    assert row == {"run": "1a2b3c4d", "id": "q1", "key": "k1", "labeller": "", "gold": "12"}


def test_repeating_a_label_adds_no_line(labels: LabelFile) -> None:
    labels.add({"q1": "12"})
    before = labels.path.read_bytes()
    labels.add({"q1": "12"})
    assert labels.path.read_bytes() == before


def test_a_half_written_line_does_not_count_and_is_set_aside(labels: LabelFile) -> None:
    labels.add({"q1": "12", "q2": "5"})
    whole = labels.path.read_bytes()
    labels.path.write_bytes(whole[:-20])
    assert labels.read() == {"": {"q1": "12"}}
    said = labels.repair()
    assert said is not None
    assert "half-written" in said
    assert labels.path.with_name("labels.partial").read_bytes().startswith(b'{"run"')
    labels.add({"q2": "6"})
    assert labels.read() == {"": {"q1": "12", "q2": "6"}}
    assert labels.repair() is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"run": LONG}, "another run"),
        ({"key": "other"}, "another run"),
        ({"id": LONG}, "another run"),
        ({"gold": [LONG]}, "field 'gold': expected text or null, got .'9"),
        ({"labeller": [LONG]}, "field 'labeller': expected text, got .'9"),
    ],
)
def test_a_label_of_another_run_is_refused(
    labels: LabelFile, change: dict[str, Any], said: str
) -> None:
    labels.add({"q1": "12", "q2": "5"})
    first, second = map(json.loads, labels.path.read_text().splitlines())
    labels.path.write_text(f"{json.dumps(first)}\n{json.dumps(second | change)}\n")
    with pytest.raises(ProbeError, match=r"labels\.jsonl:2: .*" + said) as caught:
        labels.read()
    assert len(str(caught.value)) < 600


def test_one_labeller_has_one_gold_for_a_question(labels: LabelFile) -> None:
    labels.add({"q1": LONG})
    with pytest.raises(ProbeError, match=r"'q1' is already labelled '9+\.\.\.9+', got '13'"):
        labels.add({"q2": "1", "q1": "13"})
    assert labels.read() == {"": {"q1": LONG}}
    line = json.loads(labels.path.read_text()) | {"gold": "13"}
    with labels.path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(ProbeError, match=r":2: .*'q1' has '9+\.\.\.9+' in line 1, got '13'"):
        labels.read()


def test_gold_for_a_question_that_is_not_in_the_run_is_refused(labels: LabelFile) -> None:
    with pytest.raises(
        ProbeError, match=r"question '9+\.\.\.9+' is not in the run, got gold for it"
    ):
        labels.add({"q1": "1", LONG: "12"})
    assert labels.read() == {}


# --- Sheets ---------------------------------------------------------------------------------------

SHEETS = [LabelSheet("q1", 'Say "2"?\nOr 3', ("2", "-3")), LabelSheet("q2", "=1+1", ("4", "5"))]


@pytest.mark.parametrize("name", ["sheet.jsonl", "sheet.csv"])
def test_a_sheet_comes_back_as_it_was_filled_in(
    run: RunDirectory, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    write_sheet(path, SHEETS, run)
    assert read_sheet(path, run) == {}
    fill(path, {"q1": "-3", "q2": None})
    assert read_sheet(path, run) == {"q1": "-3", "q2": None}
    with pytest.raises(OutputError, match="already exists"):
        write_sheet(path, SHEETS, run)


def fill(path: Path, golds: dict[str, str | None]) -> None:
    """Write gold on a sheet, as people do."""
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [row | {"gold": golds[row["id"]]} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for row in rows:
            gold = golds[row["id"]]
            writer.writerow(row | {"gold": "null" if gold is None else gold})


def test_a_spreadsheet_does_not_take_a_question_for_a_formula(
    run: RunDirectory, tmp_path: Path
) -> None:
    path = tmp_path / "sheet.csv"
    write_sheet(path, SHEETS, run)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["question"] for row in rows] == [SHEETS[0].question, "'=1+1"]
    assert [row["answers"] for row in rows] == ["2 | -3", "4 | 5"]


def test_ids_that_a_sheet_has_to_quote_come_back(run: RunDirectory, tmp_path: Path) -> None:
    path, names = tmp_path / "sheet.csv", ["@1", "'tis", "-3", "x"]
    write_sheet(path, [LabelSheet(name, "Q", ("2",)) for name in names], run)
    path.write_text(path.read_text().replace(",,", ",7,"))
    assert list(read_sheet(path, run)) == names


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"id": "q1", "gold": "1"}\n{', ":2: expected one JSON object, got broken JSON"),
        ("[1]", ":1: expected one JSON object"),
        ('{"gold": "1"}', ":1: field 'id': expected a value in every row, got nothing"),
        ('{"id": "q1"}', ":1: field 'gold': expected a value in every row, got nothing"),
        ('{"id": "q1", "gold": ["1"]}', ":1: field 'gold': expected text or null"),
        ('{"id": "q1", "gold": true}', ":1: field 'gold': expected text or null"),
        (
            f'{{"id": "{LONG}", "gold": "1"}}\n{{"id": "{LONG}", "gold": "2"}}',
            ":2: question '9999999",
        ),
        ('{"id": "q1", "gold": "1", "run": "0"}', ":1: field 'run': expected this run"),
    ],
)
def test_errors_in_a_sheet_name_the_line(
    run: RunDirectory, tmp_path: Path, lines: str, said: str
) -> None:
    path = tmp_path / "sheet.jsonl"
    path.write_text(lines)
    with pytest.raises((ProbeError, WorkloadError)) as error:
        read_sheet(path, run)
    assert f"{path}{said}" in str(error.value)
    assert len(str(error.value)) < 400


def test_a_number_is_gold_too(run: RunDirectory, tmp_path: Path) -> None:
    path = tmp_path / "sheet.jsonl"
    path.write_text('{"id": "q1", "gold": 7}\n{"id": "q2", "gold": -0.50}\n')
    assert read_sheet(path, run) == {"q1": "7", "q2": "-0.50"}


@pytest.mark.parametrize(("task", "gold"), [("numeric", "?"), ("choice", "n/a"), ("math", "?")])
def test_gold_that_no_answer_could_equal_is_refused(
    run: RunDirectory, tmp_path: Path, task: str, gold: str
) -> None:
    """It would make both answers wrong, and a wrong answer of full thinking cannot be lost."""
    path = tmp_path / "sheet.csv"
    path.write_text(f"id,gold\nq1,null\nq2,{gold}\n")
    with pytest.raises(WorkloadError, match=rf"{path}:3: field 'gold': expected an? "):
        read_sheet(path, run, {"q1": task, "q2": task})
    path.write_text("id,gold\nq1,null\nq2,7\n")
    assert read_sheet(path, run, {"q1": "numeric"}) == {"q1": None, "q2": "7"}


def test_other_formats_are_refused(run: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"expected a name ending in \.jsonl or \.csv"):
        write_sheet(tmp_path / "sheet.xlsx", SHEETS, run)
    with pytest.raises(WorkloadError, match="expected a readable file"):
        read_sheet(tmp_path / "none.csv", run)
