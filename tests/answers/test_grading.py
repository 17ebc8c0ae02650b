"""Grading against gold: the verdicts, and what happens to comparisons that hang or crash."""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopadvisor.answers import grading
from stopadvisor.answers.grading import Grader
from stopadvisor.answers.normal_form import normalize
from stopadvisor.ground.errors import StopAdvisorError


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    """One grader for all verdicts: its process takes two seconds to start."""
    with Grader() as shared:
        yield shared


@pytest.mark.parametrize(
    ("task", "gold", "right", "wrong"),
    [
        ("numeric", "42", [" 42.0\n"], ["43", "unknown"]),
        ("numeric", "1,000", ["\\$1000"], []),
        ("numeric", "0.5", ["\\frac{1}{2}"], []),
        ("numeric", "0.1", [], ["0.10000000000000001"]),
        ("numeric", "50", ["50%"], []),
        ("choice", "(B)", ["The answer is B) foo"], ["(C)"]),
        ("exact", "New York", [" **new  york**."], ["London"]),
        ("math", "42", ["exactly 42 apples"], ["43"]),
        ("math", "\\frac{1}{2}", ["0.5"], []),
        ("math", "(1,2)", ["(1,2)", "\\left( 1, 2 \\right)", "$(1,2)$"], ["(2,1)", "[1,2]"]),
        ("math", "x^2+1", ["1 + x^2"], []),
        ("math", "$x^2+1$", ["\\boxed{1 + x^2}"], []),
        ("math", "5", ["$x=5$"], ["3x+5"]),
        ("math", "\\text{Tuesday}", ["tuesday"], []),
        ("math", "Yes", ["yes"], ["no"]),
        ("math", "\\sqrt{8}", ["2\\sqrt{2}"], []),
        ("math", "2.5", ["2 1/2"], []),
        ("math", "10.5", [], ["2 1/2"]),
        ("math", "\\frac{1}{", [], ["1"]),
    ],
)
def test_verdicts(grader: Grader, task: str, gold: str, right: list[str], wrong: list[str]) -> None:
    for answer in (*right, *wrong):
        assert grader.grade(task, gold, answer) is (answer in right), answer


@pytest.mark.parametrize(
    ("text", "formulas"),
    [
        ("x + 1", ["$x + 1$"]),
        ("\\(x\\).", ["$x$"]),
        ("**\\[x\\]**", ["**\\[x\\]**"]),
        ("1 or \\(2\\)", ["1 or \\(2\\)"]),
        ("1 or \\[2\\]", ["1 or \\[2\\]"]),
        ("1 or $2$ more", ["1 or $2$ more"]),
        ("three \\pi", ["$three \\pi$", "three \\pi"]),
        ("$", ["$"]),
    ],
)
def test_bare_text_is_put_between_dollars(text: str, formulas: list[str]) -> None:
    assert grading._formulas(text) == formulas


@pytest.mark.parametrize("task", ["math", "numeric", "choice", "exact"])
@pytest.mark.parametrize("answer", [None, "", " \n", "$$", "Final answer:"])
def test_no_answer_is_wrong(grader: Grader, task: str, answer: str | None) -> None:
    assert not grader.grade(task, "B" if task == "choice" else "1", answer)


@pytest.mark.slow
@given(value=st.fractions(), letter=st.sampled_from("ABCDEFG"), word=st.text(min_size=1))
def test_gold_is_right(value: object, letter: str, word: str) -> None:
    with Grader() as grader:
        items = [("numeric", str(value)), ("math", str(value)), ("choice", letter), ("exact", word)]
        verdicts = grader.grade_many([(task, gold, gold) for task, gold in items])
        assert verdicts[:3] == [True] * 3
        assert verdicts[3] is bool(normalize("exact", word))


def test_order_and_repeats(grader: Grader) -> None:
    items = [
        ("math", "\\frac{1}{3}", "\\frac{2}{6}"),
        ("numeric", "1", "2"),
        ("math", "\\frac{1}{3}", "\\frac{2}{7}"),
        ("math", "\\frac{1}{3}", "\\frac{2}{6}"),
    ]
    assert grader.grade_many(items) == [True, False, False, True]
    assert grader.grade_many([]) == []


def no_process(*_: object, **__: object) -> None:
    raise AssertionError("a process was started")


def test_no_process_without_mathematics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", no_process)
    with Grader() as grader:
        items = [("numeric", "1", "2"), ("choice", "A", "B"), ("exact", "a", "b")]
        same_forms = [("math", "2003^{2002^{2001}}", "$2003^{2002^{2001}}$"), ("math", "1", "2")]
        assert grader.grade_many(items) == [False] * 3
        assert grader.grade_many(same_forms) == [True, False]


def test_identical_items_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(_: object, request: dict[str, Any]) -> bytes:
        asked.append((request["gold"], *request["answers"]))
        return b"1"

    monkeypatch.setattr(grading._Worker, "ask", ask)
    with Grader() as grader:
        item = ("math", "x+1", "1+x")
        assert grader.grade_many([item] * 3) == [True] * 3
        assert grader.grade(*item)
    assert asked == [("$x+1$", "$1+x$")]


@pytest.mark.slow
def test_hanging_answers_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [("math", "\\frac{1}{2}", "\\frac{3}{6}"), ("math", "5", "2003^{2002^{2001}}")]
    with Grader(timeout_s=0.3) as grader:
        assert grader.grade_many(items) == [True, False]
        assert grader._workers.pool[0]._process is None
        monkeypatch.setattr(subprocess, "Popen", no_process)
        assert not grader.grade(*items[1]), "remembered"


@pytest.mark.slow
def test_works_outside_the_main_thread_and_from_anywhere_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise ImportError")  # must not be imported
    monkeypatch.chdir(tmp_path)
    graders = [Grader()]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: graders[0].grade("math", "x+1", "1+x")).result()
    process = graders[0]._workers.pool[0]._process
    assert process is not None
    assert process.poll() is None
    graders.clear()  # nobody closed it
    gc.collect()
    assert process.poll() is not None


def test_missing_math_verify_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen

    def without_packages(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        return start([command[0], "-S", *command[1:]], **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(subprocess, "Popen", without_packages)
    with Grader() as grader, pytest.raises(StopAdvisorError, match=r"needs math-verify 0\.9"):
        grader.grade("math", "x+1", "1+x")
