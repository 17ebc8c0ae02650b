"""Samples of lm-evaluation-harness: a recorded file, and lines that no reply can be read from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.ground.constants import KNOWN_MARKERS
from stopadvisor.ground.errors import WorkloadError
from stopadvisor.workload.lm_eval_log import read_lm_eval
from stopadvisor.workload.logged import Logged
from tests.workload.test_imports import LOGS

ROW: dict[str, Any] = {
    "doc_id": 0,
    "doc": {"question": "How many?"},
    "target": "2 and 2 are 1,004.\n#### 1,004",
    "arguments": {"gen_args_0": {"arg_0": "How many?", "arg_1": {"max_gen_toks": 100}}},
    "resps": [["<think>a</think>b"]],
}


def read(path: Path, *, limit: int | None = None) -> tuple[Logged, ...]:
    found = read_lm_eval(path, KNOWN_MARKERS, len, limit=limit)
    assert not found.left_out
    return found.entries


def read_row(folder: Path, *, limit: int | None = None, **changes: Any) -> Logged:
    file = folder / "samples_x.jsonl"
    file.write_text(json.dumps({**ROW, **changes}))
    (entry,) = read(file, limit=limit)
    return entry


def settings(**given: Any) -> dict[str, Any]:
    return {"gen_args_0": {"arg_0": "How many?", "arg_1": given}}


def test_a_recorded_file_has_every_reply_once() -> None:
    found = read(LOGS / "lm-eval" / "samples_sums.jsonl")
    assert [(e.name, e.epoch) for e in found] == [(str(k), r) for k in range(4) for r in (1, 2)]
    assert [entry.gold for entry in found[::2]] == ["96", "92", "94", "94"]
    assert all((entry.thinking or "").startswith(" ") for entry in found)
    assert all((entry.reply or "").startswith("\n\nFinal answer") for entry in found)
    # Another model's prompt looks different, the question is the same.
    other = read(LOGS / "lm-eval" / "samples_plain.jsonl")
    assert [entry.messages for entry in found] == [entry.messages for entry in other]
    assert len({entry.messages[0]["content"] for entry in found}) == 4


def test_a_reply_close_to_its_limit_was_cut(tmp_path: Path) -> None:
    ends = {n: read_row(tmp_path, resps=[["x" * n]]) for n in (97, 98, 100)}
    assert [entry.ended for entry in ends.values()] == [True, False, False]
    assert ends[97].usage == {"input_tokens": len("How many?"), "output_tokens": 97}
    # A task that names no limit has the rung's.
    unlimited = {"arguments": settings(until=[]), "resps": [["x" * 97]]}
    assert read_row(tmp_path, limit=100, **unlimited).ended
    assert not read_row(tmp_path, limit=97, **unlimited).ended


def test_gold_follows_the_solution_and_messages_may_be_text(tmp_path: Path) -> None:
    sent = [json.dumps([{"role": "user", "content": "How many?"}])]
    entry = read_row(tmp_path, arguments={"a": {"arg_0": sent, "arg_1": {"max_gen_toks": 9}}})
    assert (entry.gold, entry.thinking, entry.reply) == ("1004", "a", "b")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"doc_id": None}, "field 'doc_id': expected the number of a question"),
        ({"doc_id": []}, "field 'doc_id': expected text or a number"),
        ({"doc": 3}, "field 'doc': expected the question"),
        ({"arguments": []}, "field 'arguments': expected a prompt"),
        ({"arguments": {"a": {"arg_0": 3, "arg_1": {}}}}, "field 'arguments': expected a prompt"),
        ({"arguments": settings()}, "field 'arguments': expected max_gen_toks, or max_tokens of"),
        ({"arguments": settings(max_gen_toks=0.5)}, "field 'arguments': expected max_gen_toks"),
        ({"arguments": settings(max_gen_toks=10**400)}, "field 'arguments': expected max_gen_toks"),
        ({"resps": []}, "field 'resps': expected the texts"),
        ({"resps": [[3]]}, "field 'resps': expected the texts"),
        ({"resps": [["a", "\ud800"]]}, "field 'resps': expected Unicode text, got half a surr"),
        (
            {"arguments": {"a": {"arg_0": "\ud800", "arg_1": {"max_gen_toks": 9}}}},
            "field 'arguments': expected Unicode text",
        ),
    ],
)
def test_what_holds_no_reply_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(WorkloadError) as error:
        read_row(tmp_path, **changes)
    assert f"samples_x.jsonl:1: {message}" in str(error.value)
    assert "\n" not in str(error.value)


def test_options_compared_by_likelihood_are_no_replies() -> None:
    with pytest.raises(WorkloadError, match="expected the texts of a generation task"):
        read(LOGS / "lm-eval" / "samples_options.jsonl")
