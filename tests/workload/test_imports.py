"""Logs of evaluation programs as workloads: files that the programs wrote, and broken ones."""

from __future__ import annotations

import csv
import json
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.ground.constants import KNOWN_MARKERS
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.workload import inspect_log, logged
from stopadvisor.workload.inspect_log import read_inspect
from stopadvisor.workload.logged import Gathered, LogContent, gather, read_csv

LOGS = Path(__file__).parent.parent / "testdata" / "imports"
"""Its README.md says which program wrote each file."""


def content(kind: str, *paths: Path, **columns: str) -> LogContent:
    if kind == "inspect":
        return read_inspect(paths, KNOWN_MARKERS)
    return read_csv(paths, KNOWN_MARKERS, columns)


def read(kind: str, *paths: Path, all_of: str | None = None, **columns: str) -> Gathered:
    return gather(content(kind, *paths, **columns), task=all_of)


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def refused(kind: str, path: Path, **columns: str) -> str:
    with pytest.raises(WorkloadError) as caught:
        read(kind, path, **columns)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(path))


# --- inspect_ai -----------------------------------------------------------------------------------


def test_inspects_log_keeps_prompt_gold_and_thinking_of_each_epoch() -> None:
    found = read("inspect", LOGS / "inspect" / "sums.eval")
    first, marked, cut, bare = found.lines
    assert first["id"] == "sum-3"
    system = {"role": "system", "content": "You are good at sums."}
    assert [dict(m) for m in first["messages"]] == [system, *user("What is 3 + 4?")]
    assert first["gold"] == "7"
    thought = "Three and four make seven. Wait, yes, seven."
    assert first["traces"] == [{"thinking": thought, "reply": "ANSWER: 7"}] * 2
    assert marked["traces"][0] == {
        "thinking": "\nTwelve less five is seven.\n", "reply": "\n\nANSWER: 7"
    }  # fmt: skip
    assert cut["traces"][0].keys() == {"thinking"}
    assert cut["traces"][0]["thinking"].startswith("Six sevens")
    assert "gold" not in bare  # two targets
    assert bare["traces"] == [{"reply": "ANSWER: 18"}] * 2
    assert (found.n_gold, found.n_traces, found.n_cut, found.n_untraced) == (3, 6, 2, 1)
    assert len(found.without_thinking) == 2
    assert found.without_thinking[0].endswith("sums.eval: samples/sum-9_epoch_1.json")
    assert "holds 2 right answers" in found.left_out[0]


def test_a_question_that_comes_again_is_named(tmp_path: Path) -> None:
    path = tmp_path / "asked.csv"
    path.write_text("question,gold\nWhat is 3 + 4?,7\nWhat is 4 + 4?,8\nWhat is 3 + 4?,7\n")
    found = read("csv", path, question="question", gold="gold")
    assert len(found.lines) == 2
    again = f"{path}:4: question: expected a new one, got that of {path}:2 again"
    assert found.left_out == (again,)


def test_inspects_log_may_be_json_and_have_choices() -> None:
    packed, plain = (read("inspect", LOGS / "inspect" / f"primes.{k}") for k in ("eval", "json"))
    (line,) = packed.lines
    assert plain.lines == packed.lines
    assert line["gold"] == "B"
    assert line["messages"][0]["content"].endswith("A) 9\nB) 11\nC) 15")


def test_replies_without_thinking_may_be_left_out() -> None:
    found = gather(content("inspect", LOGS / "inspect" / "sums.eval"), traces_only=True)
    assert [line["id"] for line in found.lines] == ["sum-3", "sum-1", "sum-6"]
    assert (found.n_untraced, found.without_thinking) == (0, ())
    assert sum("expected its thinking" in sentence for sentence in found.left_out) == 2


def test_a_model_that_ended_without_a_reply_was_not_cut(tmp_path: Path) -> None:
    thinking = {"type": "reasoning", "reasoning": "So"}
    samples = [
        {
            "input": name,
            "messages": [*user(name), {"role": "assistant", "content": [thinking]}],
            "output": {"choices": [{"stop_reason": reason}]},
        }
        for name, reason in (("a", "stop"), ("b", "max_tokens"))
    ]
    (tmp_path / "l.json").write_text(json.dumps({"samples": samples}))
    found = read("inspect", tmp_path / "l.json")
    ended, cut = (line["traces"][0] for line in found.lines)
    assert (ended, cut) == ({"thinking": "So", "finish": "stop"}, {"thinking": "So"})
    assert found.n_cut == 1


def test_attachments_errors_options_and_hidden_thinking_are_read(tmp_path: Path) -> None:
    hidden = [
        {"type": "reasoning", "reasoning": "?", "redacted": True},
        {"type": "text", "text": "7"},
    ]
    asked = [{"role": "user", "content": [{"type": "text", "text": "attachment://long"}, "So?"]}]
    samples = [
        {
            "input": "attachment://long", "attachments": {"long": "Why so long?"},
            "error": {"message": "it\n broke"}, "target": ["b", "b"],
        },
        {
            "messages": [*asked, {"role": "assistant", "content": hidden}],
            "attachments": {"long": "Why?"}, "target": [],
        },
        {"messages": [*user("c"), {"role": "assistant", "content": []}], "target": 5},
        {"input": "d", "choices": [1, "y"]},
    ]  # fmt: skip
    log = tmp_path / "l.json"
    log.write_text(json.dumps({"samples": samples}))
    found = read("inspect", log)
    assert found.lines == (
        {"question": "Why so long?", "gold": "b"},
        {"messages": tuple(user("Why?\nSo?")), "traces": [{"reply": "7"}]},
        {"question": "c", "gold": "5"},
        {"question": "d\n\nA. 1\nB. y"},
    )
    assert found.left_out == (
        f"{log}: samples[0]: reply: expected one, got the error 'it broke'",
        f"{log}: samples[2]: reply: expected text, got none",
        f"{log}: samples[3]: reply: expected one, got no assistant's message",
    )


def test_ids_that_several_questions_have_are_told_apart(tmp_path: Path) -> None:
    def sample(text: str) -> dict[str, Any]:
        return {"id": 1, "input": text, "target": "x", "messages": []}

    log = tmp_path / "l.json"
    log.write_text(json.dumps({"samples": [sample("a"), sample("b"), sample("c"), sample("a")]}))
    found = read("inspect", log)
    assert [(line["id"], line["question"]) for line in found.lines] == [
        ("1", "a"), ("1-2", "b"), ("1-3", "c"),
    ]  # fmt: skip
    assert len(found.renamed) == 2
    *silent, again = [line.removeprefix(f"{log}: ") for line in found.left_out]
    assert [line.partition(",")[0] for line in silent] == [
        f"samples[{k}]: reply: expected one" for k in range(4)
    ]
    assert again == f"samples[3]: question: expected a new one, got that of {log}: samples[0] again"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[: len(data) // 2], "expected an .eval log, got a broken one"),
        (lambda data: data[:200] + b"\0" * 900 + data[1100:], "expected an .eval log"),
        (lambda data: b"", "expected one JSON object"),
        (lambda data: b"[" * 100_000, "expected one JSON object"),
        (
            lambda data: b'{"samples": []}',
            "field 'samples': expected the samples of a finished log",
        ),
        (lambda data: b'{"samples": [3]}', "samples[0]: expected an object, got int"),
        (lambda data: b'{"samples": [{}]}', "field 'input': expected text or chat messages"),
        (
            lambda data: b'{"samples": [{"input": []}]}',
            "field 'input': expected a list of chat messages that is not empty, got []",
        ),
        (
            lambda data: b'{"samples": [{"input": "a", "id": true}]}',
            "field 'id': expected text or a number, got true",
        ),
        (
            lambda data: (
                b'{"samples": [{"messages": [{"role": "user", "content": [{"image": 1}]}]}]}'
            ),
            "field 'messages[0].content[0]': expected text",
        ),
        (
            lambda data: (
                b'{"samples": [{"input": "a", "target": ["b"]}, {"input": "a", "target": "c"}]}'
            ),
            "field 'gold': expected 'b' as for the same question in",
        ),
    ],
)
def test_damaged_logs_are_refused_in_one_line(
    tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    log = tmp_path / "x.eval"
    log.write_bytes(damage((LOGS / "inspect" / "sums.eval").read_bytes()))
    assert message in refused("inspect", log)


def test_an_archive_unpacks_to_no_more_than_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = tmp_path / "bomb.eval"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("samples/1.json", b" " * (2**26 + 1))
    assert "samples/1.json: expected at most 64 MB of JSON, got more" in refused("inspect", bomb)
    with zipfile.ZipFile(bomb, "w") as archive:
        archive.writestr("header.json", "{}")
    assert refused("inspect", bomb) == ": expected samples in the archive, found none"
    monkeypatch.setattr(inspect_log, "MOST_UNPACKED", 1)
    assert "GB of samples, got more" in refused("inspect", LOGS / "inspect" / "sums.eval")


def test_objects_are_counted_before_they_are_made(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.eval"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("samples/1.json", b'{"a": [' + b"{}," * 5_000_000 + b"{}]}")
    tracemalloc.start()
    assert "expected at most 8,388,608 values in a document" in refused("inspect", bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**27  # the objects alone would take 360 MB


def test_samples_of_large_replies_are_refused_before_they_fill_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = tmp_path / "bomb.eval"
    reply = json.dumps({"role": "assistant", "content": "x" * 60_000})
    sample = f'{{"input": "1+1", "target": "2", "messages": [{reply}]}}'
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(20):
            archive.writestr(f"samples/{number}.json", sample)
    monkeypatch.setattr(inspect_log, "MOST_BYTES", 2**20)
    message = refused("inspect", bomb)
    assert "samples/17.json: expected at most 1 MB of questions and replies" in message


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the standard library reads Zstandard")
def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    with pytest.raises(WorkloadError, match=r"pip install 'stopadvisor\[import\]'"):
        read("inspect", LOGS / "inspect" / "sums.eval")


# --- Tables ---------------------------------------------------------------------------------------


def table(path: Path, *rows: dict[str, Any]) -> Path:
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_columns_are_named(tmp_path: Path) -> None:
    rows = [
        {"n": 4, "ask": 'How "many"?\nSay.', "right": 7.0, "why": "x" * 200_000, "says": "7"},
        {"n": 5, "ask": "And now?", "right": None, "why": None, "says": "<think>b</think>8"},
    ]
    file = table(tmp_path / "t.csv", *rows)
    columns = {"question": "ask", "gold": "right", "thinking": "why", "answer": "says", "id": "n"}
    first, second = read("csv", file, **columns).lines
    assert (first["id"], first["messages"]) == ("4", tuple(user('How "many"?\nSay.')))
    assert first["gold"] == "7.0"
    assert first["traces"] == [{"thinking": "x" * 200_000, "reply": "7"}]
    assert second["traces"] == [{"thinking": "b", "reply": "8"}]
    assert "gold" not in second
    only = read("csv", file, question="ask").lines
    assert only == ({"question": 'How "many"?\nSay.'}, {"question": "And now?"})


def test_columns_may_give_group_and_task(tmp_path: Path) -> None:
    rows = [
        {"ask": "7?", "right": "7", "team": "a", "kind": "exact"},
        {"ask": "8?", "right": "8", "team": "b", "kind": ""},
    ]
    columns = {"question": "ask", "gold": "right", "group": "team", "task": "kind"}
    file = table(tmp_path / "t.csv", *rows)
    assert read("csv", file, **columns).lines == (
        {"question": "7?", "gold": "7", "task": "exact", "group": "a"},
        {"question": "8?", "gold": "8", "group": "b"},
    )
    assert read("csv", file, all_of="math", **columns).lines[0]["task"] == "math"
    message = refused("csv", file, question="ask", task="right")
    assert message == ":2: field 'right': expected one of math, numeric, choice, exact, got \"7\""
    file = table(tmp_path / "t.csv", rows[0], {**rows[0], "team": "b"})
    message = refused("csv", file, **columns)
    assert message.startswith(":3: field 'group': expected 'a' as for the same question in ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"ask,right\nWhy?,\xff\n", ":2: expected UTF-8 text"),
        (b"ask\nWhy?\n", ":1: no column 'right' in ['ask']"),
        (b"ask,right,right\n", ":1: 2 columns 'right' in ['ask', 'right', 'right']"),
        (b"ask,b,c,d,e\n", ":1: no column 'right' in ['ask', 'b', 'c', 'd', ...]"),
        (b"ask,right\nWhy?\n", ":2: expected 2 cells, got fewer"),
        (b"ask,right\nWhy?,7,8\n", ":2: expected 2 cells, got more"),
        (b"ask,right\n ,7\n", ":2: field 'ask': expected text that is not empty"),
        (b'ask,right\n"Why?,7\n', ":2: expected CSV, got: unexpected end of data"),
        (b"ask,right\nWhy?,7\nWhy?,8\n", ":3: field 'gold': expected '7' as for the same question"),
    ],
)
def test_bad_tables_are_refused_by_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    assert refused("csv", tmp_path / "t.csv", question="ask", gold="right").startswith(message)


def test_a_file_may_have_as_many_bytes_as_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.csv").write_text("ask\nWhy?\n")
    (tmp_path / "l.json").write_text('{"samples": [{"input": "a"}]}')
    for reader, kind, name, size in (
        (logged, "csv", "t.csv", 9),
        (inspect_log, "inspect", "l.json", 29),
    ):
        file = tmp_path / name
        monkeypatch.setattr(reader, "MOST_BYTES", size)
        assert len(read(kind, file, question="ask").lines) == 1
        monkeypatch.setattr(reader, "MOST_BYTES", size - 1)
        assert "expected at most 0 MB of" in refused(kind, file, question="ask")


def test_there_must_be_a_question_and_gold_that_an_answer_can_equal(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("ask,right\n")
    with pytest.raises(WorkloadError, match="expected at least one question, got none"):
        read("csv", tmp_path / "t.csv", question="ask")
    (tmp_path / "t.csv").write_text("ask,right\nWhy?,Paris\n")
    with pytest.raises(WorkloadError, match=r"t.csv:2: field 'gold': expected an option letter"):
        read("csv", tmp_path / "t.csv", all_of="choice", question="ask", gold="right")
    log = content("csv", tmp_path / "t.csv", question="ask")
    broken = replace(log, entries=(replace(log.entries[0], thinking="\ud800"),))
    with pytest.raises(WorkloadError, match=r"t.csv:2: .*half a surrogate pair"):
        gather(broken)
