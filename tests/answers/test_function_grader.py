"""A grader of the user's: what it is asked, what its replies mean, and what it may not do."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from stopadvisor.answers import grader_process, grading
from stopadvisor.answers.grading import FunctionGrader, Graders, open_graders
from stopadvisor.ground.errors import EngineError, GraderError

MODULE = """
import json, os, sys, time

def same(question, gold, answer):
    print("noise")
    return gold in answer and question == "Q"

def reads(question, gold, answer):
    return not sys.stdin.read()

def versioned(question, gold, answer):
    return True
versioned.version = "v2"
versioned.workers = 3

def odd(question, gold, answer):
    if answer == "raise":
        raise ValueError("no idea\\nat all")
    if answer == "none":
        return None
    if answer == "crash":
        os._exit(3)
    if answer == "hang":
        while True:
            pass
    return answer == "right"

def text(question, gold, answer):
    return "yes"

def down(question, gold, answer):
    from stopadvisor.ground.errors import EngineError
    raise EngineError("the judge is away")

def numpy_bool(question, gold, answer):
    import numpy as np
    return np.bool_(True)

def two(question, gold):
    return True

number = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module in the current directory."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text(MODULE)
    return file


def items(*answers: str | None) -> list[tuple[str, str, str | None]]:
    return [("exact", "7", answer) for answer in answers]


def test_the_function_gets_question_gold_and_the_extracted_answer() -> None:
    with FunctionGrader("mine:same") as grader:
        asked = items("Final answer: **7** apples", "Final answer: 8", "", None)
        assert grader.grade_many(asked, ["Q"] * 4) == [True, False, False, False]
        assert grader.grade_many(items("7"), ["another"]) == [False]
        assert grader.remarks() == []


def test_it_reads_no_request() -> None:
    with FunctionGrader("mine:reads") as grader:
        assert grader.grade_many(items("7", "8"), ["Q"] * 2) == [True, True]


def test_it_is_named_with_its_version_and_its_modules_hash(module: Path) -> None:
    digest = hashlib.sha256(module.read_bytes()).hexdigest()
    with FunctionGrader("mine:versioned") as grader:
        assert grader.identity["grader"] == "mine:versioned (v2)"
        assert grader.identity["grader_sha256"] == digest
        assert len(grader._workers.pool) == 3
        assert grader.grade_many(items("1", "2", "3", "4"), ["Q"] * 4) == [True] * 4
    module.write_text(MODULE + "# another\n")
    with FunctionGrader("mine:same") as grader:
        assert grader.identity["grader_sha256"] != digest


def test_what_it_cannot_tell_is_counted() -> None:
    asked = items("right", "raise", "none", "crash", "hang", "wrong", "right", "raise")
    with FunctionGrader("mine:odd", timeout_s=0.3) as grader:
        verdicts = grader.grade_many(asked, ["Q"] * len(asked))
        assert verdicts == [True, None, None, None, None, False, True, None]
        (remark,) = grader.remarks()
    assert "mine:odd could not judge 4 of 6 distinct answers" in remark
    assert "most often (2): it ran out of time or killed its process" in remark


@pytest.mark.parametrize(
    ("name", "answer", "reply"),
    [
        ("same", "7", b"1"),
        ("same", "8", b"0"),
        ("numpy_bool", "", b"1"),
        ("odd", "none", b"?it returned None"),
        ("odd", "raise", b"?ValueError: no idea at all"),
        ("text", "", b"!str 'yes'"),
        ("down", "", b"xthe judge is away"),
    ],
)
def test_the_process_replies_in_a_letter_and_a_reason(name: str, answer: str, reply: bytes) -> None:
    grade, _ = grader_process._function(f"mine:{name}")
    assert grade({"question": "Q", "gold": "7", "answer": answer}) == reply
    sys.modules.pop("mine")


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("mine:text", GraderError, "expected True, False or None, got str 'yes'"),
        ("mine:down", EngineError, "--grader mine:down: the judge is away"),
    ],
)
def test_errors_that_end_the_command(name: str, kind: type[Exception], expected: str) -> None:
    with FunctionGrader(name) as grader, pytest.raises(kind, match=expected):
        grader.grade_many(items("1"), ["Q"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mine", "expected MODULE:FUNCTION or 'gold', got 'mine'"),
        ("mine.py:same", "No module named 'mine.py'"),
        ("os;rm:same", "expected MODULE:FUNCTION"),
        ("absent:same", "No module named 'absent'"),
        ("mine:absent", "has no attribute 'absent'"),
        ("mine:number", "number is a int, not a function"),
        ("mine:two", r"two does not take \(question, gold, answer\)"),
        ("sys:intern", "has no source file"),
    ],
)
def test_functions_that_cannot_be_loaded(name: str, expected: str) -> None:
    with pytest.raises(GraderError, match=expected) as error:
        FunctionGrader(name)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


def test_a_broken_module_is_one_line(module: Path) -> None:
    module.write_text("raise RuntimeError('first\\nsecond')")
    with pytest.raises(GraderError, match="RuntimeError: first second"):
        FunctionGrader("mine:same")


def test_a_name_too_long_for_a_policy_is_refused(module: Path) -> None:
    module.write_text(MODULE + "same.version = 'a' * 300\n")
    with pytest.raises(GraderError, match="at most 200 printable ASCII characters"):
        FunctionGrader("mine:same")


def test_the_current_directory_shadows_no_library(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise ImportError")
    with FunctionGrader("mine:same") as grader:
        assert grader.grade_many(items("7"), ["Q"]) == [True]


def test_only_the_named_module_comes_from_the_current_directory(
    tmp_path: Path, module: Path
) -> None:
    """A library's optional import is not satisfied by a file in that directory."""
    (tmp_path / "brotli.py").write_text("open('ran', 'w').close()")
    module.write_text("def same(question, gold, answer):\n    import brotli\n    return True\n")
    with FunctionGrader("mine:same") as grader:
        assert grader.grade_many(items("7"), ["Q"]) == [None]
        assert "No module named 'brotli'" in grader.remarks()[0]
    assert not (tmp_path / "ran").exists()


def test_the_function_may_be_in_a_package(tmp_path: Path) -> None:
    package = tmp_path / "ours"
    package.mkdir()
    (package / "shared.py").write_text("RIGHT = '7'")
    (package / "graders.py").write_text(
        "from ours.shared import RIGHT\ndef same(question, gold, answer):\n"
        "    return answer == RIGHT\n"
    )
    with FunctionGrader("ours.graders:same") as grader:
        assert grader.grade_many(items("7", "8"), ["Q"] * 2) == [True, False]


def test_a_process_that_was_killed_is_replaced() -> None:
    with FunctionGrader("mine:same") as grader:
        process = grader._workers.pool[0]._process
        assert process is not None
        process.kill()
        process.wait()
        assert grader.grade_many(items("7"), ["Q"]) == [True]


def test_an_interrupted_request_leaves_no_late_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    with FunctionGrader("mine:same") as grader:
        with monkeypatch.context() as patch:
            patch.setattr(grading, "_read", interrupted)
            with pytest.raises(KeyboardInterrupt):
                grader.grade_many(items("7"), ["Q"])
        assert grader.grade_many(items("8"), ["Q"]) == [False]


def test_it_never_decides_whether_two_answers_are_equal() -> None:
    with open_graders("mine:same") as graders:
        assert graders.equal.grade("numeric", "1", "1.0")
        assert graders.right is not graders.equal
    for name in (None, "gold"):
        with open_graders(name) as graders:
            assert graders == Graders(graders.equal, graders.equal)
