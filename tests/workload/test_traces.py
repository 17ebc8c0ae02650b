"""Recorded traces: told apart from replies, matched to questions, refused by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.ground.constants import KNOWN_MARKERS
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.workload.questions import read_workload
from stopadvisor.workload.traces import read_traces, split_thinking, with_traces

USER = {"role": "user", "content": "What is 3 + 4?"}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def turn(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", **fields}]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a\n</think>\n\nb", ("a\n", "\n\nb")),
        ("\n<think>a</think>b", ("a", "b")),
        ("a</think>b", ("a", "b")),
        ("<think>a", ("a", None)),
        ("[THINK]a[/THINK]b", ("a", "b")),
        ("b", (None, "b")),
        ("b, not <think> at its start", (None, "b, not <think> at its start")),
        ("<think></think>b", ("", "b")),
    ],
)
def test_thinking_is_separated_from_the_reply(
    text: str, expected: tuple[str | None, str | None]
) -> None:
    assert split_thinking(text, KNOWN_MARKERS) == expected


@pytest.mark.parametrize(
    ("row", "thinking", "reply"),
    [
        (turn(content="7", reasoning_content="a"), "a", "7"),
        (turn(content="7", reasoning="a"), "a", "7"),
        (turn(content="<think>a</think>7"), "a", "7"),
        (turn(content=None, reasoning_content="a"), "a", None),
        ({"question": USER["content"], "traces": [{"thinking": "a", "reply": "7"}]}, "a", "7"),
        ({"messages": [USER], "traces": [{"thinking": "", "reply": "7"}]}, "", "7"),
        ({"messages": [USER], "traces": [{"thinking": "a", "reply": ""}]}, "a", None),
        (turn(content="<think>a</think>\n"), "a", None),
    ],
)
def test_an_assistants_turn_is_the_recorded_reply(
    tmp_path: Path, row: dict[str, Any], thinking: str, reply: str | None
) -> None:
    file = write(tmp_path / "w.jsonl", {**row, "gold": 7})
    workload = with_traces(read_workload(file), read_traces(file), 1)
    (question,) = workload.questions
    assert question.messages == (USER,)
    (trace,) = question.traces
    assert (trace.thinking, trace.reply, trace.where) == (thinking, reply, f"{file}:1")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (turn(content="7"), "field 'messages[-1]': expected thinking that can be separated"),
        (turn(content=None), "field 'messages[-1]': expected thinking that can be separated"),
        (turn(content=[7]), "field 'content': expected text"),
        ({"question": "a", "traces": 3}, "field 'traces': expected a list of traces, got 3"),
        ({"question": "a", "traces": ["b"]}, "field 'traces[0]': expected an object"),
        (
            {"question": "a", "traces": [{"thinking": "b", "reply": "c"}, {"reply": "7"}]},
            "field 'traces[1]': expected thinking that can be separated from the reply, got a "
            "reply alone",
        ),
        (
            {"question": "a", "traces": [{"thinking": 3}]},
            "field 'traces[0].thinking': expected text, got 3",
        ),
        (
            {"question": "a", "traces": [{"thinking": "b", "finish": "tired"}]},
            "field 'traces[0].finish': expected 'stop' or 'length', got",
        ),
        ({**turn(content="7"), "traces": []}, "field 'traces': expected only one of"),
        ({"question": "a"}, "expected recorded traces, got none in 1 lines"),
    ],
)
def test_bad_traces_are_refused_by_file_and_line(
    tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    file = write(tmp_path / "t.jsonl", row)
    with pytest.raises(WorkloadError) as caught:
        read_traces(file)
    assert str(caught.value).startswith(f"{file}")
    assert message in str(caught.value)


def test_a_question_without_its_traces_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "w.jsonl", {"question": "a", "id": "x"}, {"question": "b", "id": "y"})
    trace = {"thinking": "t", "reply": "r"}
    traces = write(tmp_path / "t.jsonl", {"question": "b", "traces": [trace] * 2})
    with pytest.raises(WorkloadError, match=r"w.jsonl:1: question 'x': expected a recorded trace"):
        with_traces(read_workload(file), read_traces(traces), 1)
    write(tmp_path / "t.jsonl", *({"question": q, "traces": [trace]} for q in "aab"))
    workload, recorded = read_workload(file), read_traces(traces)
    assert [len(q.traces) for q in with_traces(workload, recorded, 1).questions] == [2, 1]
    with pytest.raises(WorkloadError, match=r"w.jsonl:2: question 'y': expected 2 recorded traces"):
        with_traces(workload, recorded, 2)
