"""Workloads: which lines are accepted or refused, with what message, and the split."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stopadvisor.ground.errors import WorkloadError
from stopadvisor.workload.inspect_log import read_inspect
from stopadvisor.workload.logged import read_table
from stopadvisor.workload.questions import (
    PARTS,
    Question,
    assign_parts,
    parse_split,
    read_workload,
    render_messages,
)
from tests import missing

USER = {"role": "user", "content": "What is 1+1?"}
EMPTY = (b"", b"\n \n", b"\xef\xbb\xbf")


def write(folder: Path, *rows: Any, name: str = "work.jsonl", ending: str = "\n") -> Path:
    """Write rows, objects as JSON and text as it is."""
    path = folder / name
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text(ending.join(lines) + ending, encoding="utf-8", newline="")
    return path


def q(text: str = "What is 1+1?", gold: Any = "2", **fields: Any) -> dict[str, Any]:
    return {"question": text, "gold": gold, **fields}


def test_reads_all_fields(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        q(id="a", task="math", category="algebra", group="g", answer="3", more={"ignored": [1]}),
        {"messages": [{"role": "system", "content": "Be brief."}, USER], "answer": 2, "id": 7},
    )
    workload = read_workload(path)
    assert workload.name == "work"
    assert workload.path == path
    assert workload.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert workload.guessed_tasks == {"numeric": 1}
    first, second = workload.questions
    key = hashlib.sha256(b'[{"content":"What is 1+1?","role":"user"}]').hexdigest()
    assert first == Question("a", key, (USER,), "2", "math", "algebra", "g", True)
    assert (first.group_key, second.group_key) == ("g", second.key)
    assert (second.id, second.gold, second.templated) == ("7", "2", False)
    assert second.messages == ({"role": "system", "content": "Be brief."}, USER)


def test_null_is_absent(tmp_path: Path) -> None:
    row = q(id=None, task=None, category=None, group=None, messages=None, answer=None)
    question = read_workload(write(tmp_path, row)).questions[0]
    assert (question.id, question.task, question.category, question.group) == (
        question.key[:12],
        "numeric",
        None,
        None,
    )


@pytest.mark.parametrize("ending", ["\n", "\r\n"], ids=["unix", "dos"])
@pytest.mark.parametrize("head", [b"", b"\xef\xbb\xbf"], ids=["plain", "bom"])
@pytest.mark.parametrize("tail", [b"", b"\n\n", None], ids=["newline", "blank lines", "no end"])
def test_file_forms(tmp_path: Path, ending: str, head: bytes, tail: bytes | None) -> None:
    path = write(tmp_path, q("a"), q("b\u2028c"), ending=ending)
    content = path.read_bytes()
    path.write_bytes(head + (content.rstrip() if tail is None else content + tail))
    assert [p.messages[0]["content"] for p in read_workload(path).questions] == ["a", "b\u2028c"]


@pytest.mark.parametrize(
    ("literal", "text"),
    [("42", "42"), ("-0.50", "-0.50"), ("1e2", "1E+2"), ("12345678901234567890.5",) * 2],
    ids=["integer", "decimal", "exponent", "more digits than a float holds"],
)
def test_gold_numbers_keep_their_digits(tmp_path: Path, literal: str, text: str) -> None:
    question = read_workload(write(tmp_path, f'{{"question": "a", "gold": {literal}}}'))
    assert question.questions[0].gold == text
    assert question.guessed_tasks == {"numeric": 1}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{nonsense", "expected one JSON object, got broken JSON (Expecting property name"),
        ('{"question": "a", "gold": "b"', "got broken JSON"),
        ("[1]", "expected one JSON object, got [1]"),
        ("", "expected a question, got a blank line"),
        ("[" * 100_000, "expected one JSON object, got"),
        ('{"question": "a", "gold": ' + "1" * 5000 + "}", "expected one JSON object, got"),
        ('{"gold": 1, "question": "a", "gold": 2}', "field 'gold': expected once, got twice"),
        ({"gold": "1"}, "field 'question': expected 'question' or 'messages', got neither"),
        (q(messages=[USER]), "field 'messages': expected only one of 'question' and 'messages'"),
        (q(""), "field 'question': expected text that is not empty, got \"\""),
        (q(["a"]), "field 'question': expected text that is not empty, got [\"a\"]"),  # type: ignore[arg-type]
        ('{"question": "\\ud800", "gold": 1}', "field 'question': expected Unicode text"),
        (
            '{"messages": [{"role": "user", "content": "q", "\\ud800": "x"}]}',
            "field 'messages[0]': expected Unicode text",
        ),
        (q(gold=[2]), "field 'gold': expected text that is not empty, or a number, got [2]"),
        (q(gold=True), "field 'gold': expected text that is not empty, or a number, got true"),
        (q(gold=float("nan")), "field 'gold': expected text that is not empty, or a number, got N"),
        ({"question": "a", "answer": []}, "field 'answer': expected text that is not empty"),
        (q(task="poetry"), "field 'task': expected one of math, numeric, choice, exact, got"),
        (q(task="choice", gold="Paris"), "field 'gold': expected an option letter for task"),
        (q(task="numeric", gold="two"), "field 'gold': expected a number for task 'numeric'"),
        (q(id=["x"]), "field 'id': expected text that is not empty, or a whole number"),
        (q(id=1.5), "field 'id': expected"),
        (q(category=True), "field 'category': expected"),
        (q(group=""), "field 'group': expected"),
        ({"messages": [], "gold": 1}, "field 'messages': expected a list of chat messages"),
        ({"messages": ["hi"], "gold": 1}, "field 'messages[0]': expected an object"),
        (
            {"messages": [{"role": "robot", "content": "a"}], "gold": 1},
            "field 'messages[0].role': expected one of system",
        ),
        ({"messages": [{"role": "user"}], "gold": 1}, "field 'messages[0].content': expected"),
        (
            {"messages": [{**USER, "content": [{"type": "text"}]}], "gold": 1},
            "field 'messages[0].content': expected text",
        ),
        ({"messages": [{**USER, "name": 3}], "gold": 1}, "field 'messages[0].name': expected text"),
        (
            {"messages": [USER, {"role": "tool", "content": "2"}], "gold": 1},
            "field 'messages[1].role': expected 'user', got \"tool\"",
        ),
    ],
)
def test_bad_lines_are_refused(tmp_path: Path, row: Any, message: str) -> None:
    path = write(tmp_path, q("one"), q("two"), row, q("three"))
    with pytest.raises(WorkloadError) as caught:
        read_workload(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.jsonl", r"none\.jsonl: expected a readable file, got: No such file"),
        ("", "expected a readable file, got: Is a directory"),
        ("a\0b", "expected a readable file"),
    ],
)
def test_missing_files_and_directories_are_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        read_workload(tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason=missing.needs("a user other than root"))
def test_unreadable_file(tmp_path: Path) -> None:
    path = write(tmp_path, q())
    path.chmod(0)
    with pytest.raises(WorkloadError, match="expected a readable file"):
        read_workload(path)


class _Broken(RawIOBase):
    """A file on a disk, or at a server, that fails while it is read."""

    def readable(self) -> bool:
        return True

    def readinto(self, _: object) -> int:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(
    "read",
    [read_workload, lambda path: [*read_table(path, ())], lambda path: read_inspect([path], ())],
    ids=["jsonl", "csv", "inspect"],
)
def test_a_file_that_fails_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object]
) -> None:
    monkeypatch.setattr(Path, "open", lambda *_: BufferedReader(_Broken()))
    with pytest.raises(WorkloadError, match=r"q: expected a readable file, got: Input/output err"):
        read(tmp_path / "q")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((empty, ": expected at least one question, got an empty file") for empty in EMPTY),
        (b'[\n {"question": "a"}\n]\n', ":1: .*a JSON array becomes JSONL"),
        (b'{"question": "a"}\n{"question": "caf\xe9"}\n', ":2: expected UTF-8 .* the byte 0xe9"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "work.jsonl"
    path.write_bytes(content)
    with pytest.raises(WorkloadError, match=f"work.jsonl{message}"):
        read_workload(path)


def test_one_id_for_two_questions(tmp_path: Path) -> None:
    path = write(tmp_path, q("one", id="x"), q("two", id="y"), q("three", id="x"))
    with pytest.raises(
        WorkloadError, match=r"work.jsonl:3: field 'id': .*'x', which line 1 has too"
    ):
        read_workload(path)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (q(gold="3"), "field 'gold': expected '2' as for the same question in line 1, got '3'"),
        (q(gold="C"), "field 'gold': expected '2' as for the same question in line 1, got 'C'"),
        (q(task="exact"), "field 'task': expected 'numeric' as for the same question in line 1"),
        (q(group="g"), "field 'group': expected None as for the same question in line 1, got 'g'"),
    ],
    ids=["gold", "gold and task", "task", "group"],
)
def test_one_question_with_two_labels(tmp_path: Path, second: Any, message: str) -> None:
    path = write(tmp_path, q(), q("other"), second)
    with pytest.raises(WorkloadError) as caught:
        read_workload(path)
    assert f"{path}:3: {message}" in str(caught.value)


def test_duplicates_share_their_key(tmp_path: Path) -> None:
    rows = [q(), q(gold="2.0"), {"messages": [USER], "gold": "2"}, q(id="mine")]
    questions = read_workload(write(tmp_path, *rows)).questions
    assert len({question.key for question in questions}) == 1
    stem = questions[0].key[:12]
    assert [question.id for question in questions] == [stem, f"{stem}-2", f"{stem}-3", "mine"]


def test_derived_ids_avoid_given_ones(tmp_path: Path) -> None:
    stem = read_workload(write(tmp_path, q())).questions[0].id
    rows = [q(), q(), q("other", id=f"{stem}-2"), q("third", id=stem)]
    ids = [question.id for question in read_workload(write(tmp_path, *rows)).questions]
    assert ids == [f"{stem}-3", f"{stem}-4", f"{stem}-2", stem]


def test_relabelling_moves_nothing(tmp_path: Path) -> None:
    before = read_workload(write(tmp_path, q(gold="2"))).questions[0]
    after = read_workload(write(tmp_path, q(gold="B", task="choice", category="x"))).questions[0]
    assert (before.id, before.key) == (after.id, after.key)


def test_default_task_replaces_the_guess(tmp_path: Path) -> None:
    workload = read_workload(write(tmp_path, q(), q("b", task="exact")), default_task="math")
    assert [question.task for question in workload.questions] == ["math", "exact"]
    assert workload.guessed_tasks == {}


@pytest.mark.parametrize(
    ("row", "asked", "task"),
    [
        ({"task": "exact"}, {}, "exact"),  # that of the others
        ({"gold": "B"}, {}, "choice"),  # guessed from their gold
        ({"gold": "B"}, {"assumed": "exact"}, "choice"),
        ({}, {}, "math"),
        ({}, {"assumed": "exact"}, "exact"),
        ({"task": "exact"}, {"default_task": "numeric"}, "numeric"),
    ],
)
def test_a_line_without_gold_and_task_takes_the_files_or_the_assumed_one(
    tmp_path: Path, row: dict[str, Any], asked: dict[str, Any], task: str
) -> None:
    path = write(tmp_path, {"question": "a", **row}, {"question": "b"})
    workload = read_workload(path, **asked)
    assert (workload.questions[1].gold, workload.questions[1].task) == (None, task)
    assert workload.assumed_task == (None if "default_task" in asked else task)
    assert workload.n_labelled == ("gold" in row)


def test_no_task_is_shared_where_there_are_two(tmp_path: Path) -> None:
    path = write(tmp_path, q(gold="2"), q("b", gold="B"), {"question": "c"})
    assert read_workload(path).questions[2].task == "math"


def test_a_line_without_gold_and_task_may_be_refused(tmp_path: Path) -> None:
    path = write(tmp_path, q(), {"question": "b"})
    with pytest.raises(WorkloadError, match=r":2: field 'task': .*no gold to guess it from"):
        read_workload(path, assumed=None)


# --- Prompt ---------------------------------------------------------------------------------------


def test_a_question_is_asked_in_the_prompt_template(tmp_path: Path) -> None:
    path = write(tmp_path, q("{x} in {question}? \\frac{1}{2}{}", task="choice", gold="B"))
    (question,) = read_workload(path).questions
    (message,) = render_messages(question, None)
    assert message["role"] == "user"
    assert message["content"].startswith("{x} in {question}? \\frac{1}{2}{}\n\n")
    assert "letter" in message["content"]
    (message,) = render_messages(question, "{json: {question}} %s")
    assert message["content"] == "{json: {x} in {question}? \\frac{1}{2}{}} %s"
    with pytest.raises(WorkloadError, match=r"expected text with '\{question\}', got 'Hello'"):
        render_messages(question, "Hello")


def test_messages_stay_as_they_are(tmp_path: Path) -> None:
    row = {"messages": [USER], "gold": "2"}
    question = read_workload(write(tmp_path, row)).questions[0]
    assert render_messages(question, None) == (USER,)
    assert render_messages(question, "Please: {question}") == (USER,)


# --- Split ----------------------------------------------------------------------------------------


def test_parse_split() -> None:
    assert parse_split("40/60/0") == (0.4, 0.6, 0.0)
    assert parse_split("33.3/33.3/33.4") == pytest.approx((0.333, 0.333, 0.334))


@pytest.mark.parametrize(
    "text", ["40/60", "a/b/c", "40/40/30", "0/80/20", "80/0/20", "60/60/-20", "nan/50/50"]
)
def test_bad_split(text: str) -> None:
    with pytest.raises(WorkloadError, match="split: expected FIT/CALIBRATION/TEST"):
        parse_split(text)


def test_assign_parts_is_pinned() -> None:
    """A run's recorded split must come out the same in every version."""
    parts = assign_parts([f"k{i}" for i in range(12)], seed=7, fractions=(0.4, 0.4, 0.2))
    assert parts.dtype == np.int8
    draws = [
        int(hashlib.sha256(f"7:k{i}".encode()).hexdigest()[:16], 16) / 2**64 for i in range(12)
    ]
    assert parts.tolist() == [0 if u < 0.4 else 1 if u < 0.8 else 2 for u in draws]
    assert PARTS == ("fit", "calibration", "test")


@settings(deadline=None)
@given(
    keys=st.lists(st.text(max_size=5), min_size=1, max_size=12),
    more=st.lists(st.text(max_size=5), max_size=4),
    seed=st.integers(0, 2**32),
)
def test_added_questions_move_no_old_one(keys: list[str], more: list[str], seed: int) -> None:
    fractions = (0.5, 0.3, 0.2)
    before = assign_parts(keys, seed=seed, fractions=fractions)
    after = assign_parts(more + keys, seed=seed, fractions=fractions)
    assert after[len(more) :].tolist() == before.tolist()
    assert len({(key, part) for key, part in zip(keys, before, strict=True)}) == len(set(keys))


@pytest.mark.parametrize("fractions", [(0.4, 0.4, 0.2), (0.4, 0.6, 0.0), (0.1, 0.2, 0.7)])
def test_parts_have_their_sizes(fractions: tuple[float, float, float]) -> None:
    parts = assign_parts([str(i) for i in range(20_000)], seed=1, fractions=fractions)
    shares = np.bincount(parts, minlength=3) / len(parts)
    assert shares == pytest.approx(fractions, abs=0.015)  # four standard errors
    assert (shares[2] == 0) == (fractions[2] == 0)


def test_seeds_give_unlike_splits() -> None:
    keys = [str(i) for i in range(1000)]
    one, two = (assign_parts(keys, seed=s, fractions=(0.5, 0.5, 0.0)) for s in (1, 2))
    assert 0.4 < float(np.mean(one == two)) < 0.6


@pytest.mark.parametrize("fractions", [(0.5, 0.5, 0.5), (-0.2, 1.0, 0.2)])
def test_bad_fractions(fractions: tuple[float, float, float]) -> None:
    with pytest.raises(WorkloadError, match="fractions: expected three shares"):
        assign_parts(["a"], seed=0, fractions=fractions)
