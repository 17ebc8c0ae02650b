"""Benchmarks as workloads: each data set's own columns, read by the library itself, offline."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stopadvisor.ground.errors import WorkloadError
from stopadvisor.workload.converters import BENCHMARKS, convert, load_rows
from stopadvisor.workload.questions import read_workload
from tests.material import Call
from tests.schemas import check_valid

GPQA = {
    "Record ID": "rec01",
    "Question": "Which particle carries the strong force? ",
    "Correct Answer": "The gluon\n",
    "Incorrect Answer 1": "The photon",
    "Incorrect Answer 2": "The W boson",
    "Incorrect Answer 3": "The graviton",
    "High-level domain": "Physics",
}
ROWS: dict[str, list[dict[str, Any]]] = {
    "gsm8k": [
        {"question": "A farm sells 1,200 eggs twice. How many?", "answer": "2 * 1200\n#### 2,400"},
        {"question": "And half of them?", "answer": "2400 / 2 = <<2400/2=1200>>1200.\n#### 1200"},
    ],
    "math500": [
        {
            "problem": "Convert $(0,3)$ to polar coordinates.",
            "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
            "subject": "Precalculus",
            "unique_id": "test/precalculus/807.json",
        }
    ],
    "mmlu-pro": [
        {
            "question_id": 70,
            "question": "Which of these is a prime?",
            "options": ["4", "6", "7", "9", "N/A"],
            "answer": "C",
            "category": "math",
        }
    ],
    "gpqa-diamond": [GPQA],
    "aime": [
        {
            "id": 0,
            "problem": "Find $m+n$.",
            "answer": "025",
            "url": "https://artofproblemsolving.com/wiki/index.php/2022_AIME_II_Problems/Problem_4",
        }
    ],
}
LINES: dict[str, dict[str, str]] = {
    "gsm8k": {"id": "gsm8k-0", "gold": "2400", "task": "numeric"},
    "math500": {
        "id": "math500-test/precalculus/807.json",
        "gold": "\\left( 3, \\frac{\\pi}{2} \\right)",
        "task": "math",
        "category": "Precalculus",
    },
    "mmlu-pro": {
        "id": "mmlu-pro-70",
        "question": "Which of these is a prime?\n\nA. 4\nB. 6\nC. 7\nD. 9",
        "gold": "C",
        "task": "choice",
        "category": "math",
    },
    "gpqa-diamond": {"id": "gpqa-diamond-rec01", "task": "choice", "category": "Physics"},
    "aime": {"id": "aime-0", "gold": "25", "task": "numeric", "category": "2022 AIME II"},
}


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        import datasets

        datasets.Dataset.from_list(list(rows)).to_parquet(str(path))
    elif path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    return partial(Call(capsys, "import"), "dataset")


@pytest.fixture(autouse=True)
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The library, with a cache of its own; imported late because it takes a second."""
    library: ModuleType = pytest.importorskip("datasets")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return library


# --- Every data set, in its own columns and through the library -----------------------------------


def test_sizes_are_those_of_the_paper() -> None:
    sizes = {name: benchmark.size for name, benchmark in BENCHMARKS.items()}
    assert sizes == {
        "gsm8k": 1000, "math500": 500, "mmlu-pro": 800, "gpqa-diamond": 198, "aime": 90,
    }  # fmt: skip


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_row_becomes_a_line(tmp_path: Path, call: Call, name: str) -> None:
    file = write(tmp_path / "rows.jsonl", ROWS[name])
    code, out, err = call(name, "--from", file, "-o", tmp_path / "w.jsonl", "--json")
    assert code == 0, err
    found = json.loads(out)
    check_valid("import-dataset", found)
    n = len(ROWS[name])
    assert (found["n_questions"], found["available"], found["left_out"]) == (n, n, 0)
    assert found["source"] == str(file)
    assert f"asked for {BENCHMARKS[name].size} questions, the data set has {n}" in err
    line = json.loads((tmp_path / "w.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert line.items() >= LINES[name].items()
    workload = read_workload(tmp_path / "w.jsonl")
    assert not workload.guessed_tasks
    assert workload.questions[0].task == BENCHMARKS[name].task


def test_the_hubs_csv_of_gpqa(tmp_path: Path) -> None:
    (line,) = convert(
        "gpqa-diamond", load_rows("gpqa-diamond", write(tmp_path / "d.csv", [GPQA])), 9, seed=0
    ).lines
    shown = dict(row.split(". ") for row in line["question"].splitlines()[2:])
    assert sorted(shown) == list("ABCD")
    assert shown[line["gold"]] == "The gluon"
    assert set(shown.values()) == {"The gluon", "The photon", "The W boson", "The graviton"}


def test_a_folder_as_downloaded_from_the_hub(tmp_path: Path) -> None:
    """Its README names the configuration, as that of openai/gsm8k does."""
    folder = tmp_path / "gsm8k"
    write(folder / "main" / "test-00000-of-00001.parquet", ROWS["gsm8k"])
    write(folder / "main" / "train-00000-of-00001.parquet", [{"question": "no", "answer": "no"}])
    write(folder / "socratic" / "test-00000-of-00001.parquet", [{"question": "no", "answer": "no"}])
    (folder / "README.md").write_text(
        "---\nconfigs:\n"
        "- config_name: main\n  data_files:\n"
        "  - split: train\n    path: main/train-*\n"
        "  - split: test\n    path: main/test-*\n"
        "- config_name: socratic\n  data_files:\n"
        "  - split: test\n    path: socratic/test-*\n"
        "---\n",
        encoding="utf-8",
    )
    assert load_rows("gsm8k", folder) == ROWS["gsm8k"]
    (folder / "README.md").unlink()
    plain = tmp_path / "plain"
    write(plain / "test.jsonl", ROWS["gsm8k"])
    assert load_rows("gsm8k", plain) == ROWS["gsm8k"]


# --- Drawing --------------------------------------------------------------------------------------


def test_a_larger_sample_contains_every_smaller_one() -> None:
    rows = [{"question": f"{i} + 1?", "answer": f"#### {i + 1}"} for i in range(200)]
    parts = [convert("gsm8k", rows, n, seed=0).lines for n in (20, 50, 200)]
    ids = [[line["id"] for line in part] for part in parts]
    assert [len(part) for part in ids] == [20, 50, 200]
    assert set(ids[0]) < set(ids[1]) < set(ids[2])
    assert ids[2] == [f"gsm8k-{i}" for i in range(200)]  # the data set's own order
    other = {line["id"] for line in convert("gsm8k", rows, 50, seed=1).lines}
    assert other != set(ids[1])
    assert ids[1] != ids[2][:50]  # drawn, not the first ones: MMLU-Pro is sorted by category


def test_options_of_gpqa_are_shuffled_evenly() -> None:
    rows = [{**GPQA, "Question": f"Question {i}?"} for i in range(400)]
    golds = [line["gold"] for line in convert("gpqa-diamond", rows, 400, seed=0).lines]
    assert all(70 <= golds.count(letter) <= 130 for letter in "ABCD")
    others = [line["gold"] for line in convert("gpqa-diamond", rows, 400, seed=1).lines]
    assert 0.15 < sum(a == b for a, b in zip(golds, others, strict=True)) / 400 < 0.35


# --- What cannot be used --------------------------------------------------------------------------


def test_rows_left_out_are_named(tmp_path: Path, call: Call) -> None:
    rows = [
        *ROWS["gsm8k"],
        {"question": "No gold?", "answer": "I do not know."},
        ROWS["gsm8k"][0],
        {"question": "Odd gold?", "answer": "#### many"},
        {"question": "Nothing?", "answer": None},
        {"question": "Nothing again?", "answer": "####"},
    ]
    file = write(tmp_path / "rows.jsonl", rows)
    code, out, err = call("gsm8k", "--from", file, "-o", tmp_path / "w.jsonl", "--json")
    assert code == 0
    assert json.loads(out)["left_out"] == 5
    assert "row 2 cannot be asked: expected an answer after '####'" in err
    assert "row 3 repeats the question of row 0" in err
    assert "row 4 cannot be asked: expected a number" in err
    assert "2 more" in err
    assert len(read_workload(tmp_path / "w.jsonl").questions) == 2


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("mmlu-pro", {**ROWS["mmlu-pro"][0], "answer": "K"}, "one of 5 options, got 'K'"),
        ("mmlu-pro", {**ROWS["mmlu-pro"][0], "options": ["N/A"] * 10}, "which is a filler"),
        ("gsm8k", {"question": None, "answer": "#### 3"}, "expected a question, got None"),
        ("gsm8k", {"question": " ", "answer": "#### 3"}, "expected a question, got ' '"),
        ("aime", {**ROWS["aime"][0], "answer": "none"}, "invalid literal"),
        ("gpqa-diamond", {**GPQA, "Incorrect Answer 2": None}, "NoneType"),
    ],
)
def test_no_usable_row_at_all(name: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=f"no question can be asked: row 0 .*{message}"):
        convert(name, [row], 5, seed=0)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [{"question": "1 + 1?", "gold": "2"}])
    with pytest.raises(WorkloadError, match=r"no column 'answer' in \['question', 'gold'\]"):
        load_rows("gsm8k", file)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (None, "rows.jsonl", "no such file or folder"),
        ("{}", "rows.txt", "expected a file named .json, .jsonl, .parquet, .csv or a folder"),
        ("{broken", "rows.jsonl", "cannot load"),
    ],
)
def test_a_bad_file_is_one_clear_line(
    tmp_path: Path, call: Call, content: str | None, name: str, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    code, out, err = call("gsm8k", "--from", tmp_path / name, "-o", tmp_path / "w.jsonl")
    assert (code, out) == (2, "")
    last = err.strip().splitlines()[-1]
    assert last.startswith("stopadvisor: ")
    assert message in last
    assert not (tmp_path / "w.jsonl").exists()


def test_a_hub_out_of_reach_is_one_clear_line(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, datasets: ModuleType
) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    code, out, err = call("gsm8k", "-o", tmp_path / "w.jsonl")
    assert (code, out) == (2, "")
    assert err.startswith("stopadvisor: cannot load openai/gsm8k: ")
    assert "--from FILE|FOLDER" in err
    assert len(err.splitlines()) == 1


def test_the_library_is_an_extra(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    code, _, err = call("gsm8k", "-o", tmp_path / "w.jsonl")
    assert code == 2
    assert "pip install 'stopadvisor[datasets]'" in err
