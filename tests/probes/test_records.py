"""The probe table, its records and the published archives."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.ground.constants import PROBE_CAP
from stopadvisor.ground.errors import ProbeError
from stopadvisor.probes.records import Checkpoint, ProbeRecord, graded_table
from stopadvisor.probes.table import EMPTY_ANSWER, NO_PROBE, agreeing, answer_codes
from stopadvisor.runs.archives import names_questions, read_archive
from stopadvisor.workload.questions import name_key
from tests.populations import POPULATIONS, renamed


def checkpoint(budget: int, **changes: Any) -> Checkpoint:
    fields: dict[str, Any] = {
        "budget": budget,
        "answer": " 42.",
        "normalized": "42",
        "correct": True,
        "mean_logprob": -0.25,
        "mean_entropy": 0.5,
        "entropy_source": "full",
        "probe_tokens": 4,
        "markers": 1.0,
        "ended": False,
    }
    return Checkpoint(**{**fields, **changes})


def record(name: str = "q1", **changes: Any) -> ProbeRecord:
    fields: dict[str, Any] = {
        "id": name,
        "key": f"key-{name}",
        "group": None,
        "sample": 0,
        "task": "numeric",
        "category": None,
        "gold": "42",
        "prompt_tokens": 30,
        "suffix_tokens": 5,
        "trace_tokens": 90,
        "finish": "stop",
        "natural_answer": "42",
        "natural_correct": True,
        "natural_answer_tokens": 6,
        "checkpoints": (checkpoint(0), checkpoint(64), checkpoint(128)),
    }
    return ProbeRecord(**{**fields, **changes})


# --- Plan and records -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "of_points"),
    [
        ({"category": "π", "natural_answer": None, "group": "g"}, {}),
        ({}, {"mean_logprob": None, "mean_entropy": None}),
        ({"marker_positions": (10, 70, 80)}, {}),
        ({"marker_positions": ()}, {}),
        ({}, {"tail_mass": 0.25}),
        ({}, {"closed_by_itself": True}),
    ],
)
def test_a_record_survives_its_line(changes: dict[str, Any], of_points: dict[str, Any]) -> None:
    row = record(**changes, checkpoints=(checkpoint(0, **of_points), checkpoint(64)))
    line = row.to_json()
    assert "\n" not in line
    assert ProbeRecord.from_dict(json.loads(line), "f:1") == row
    later = {"marker_positions", "tail_mass", "closed_by_itself"}  # than the first runs
    assert {name for name in later if name in line} == later & {*changes, *of_points}


def test_a_record_without_a_field_names_it_and_the_place() -> None:
    data = json.loads(record().to_json())
    del data["gold"]
    with pytest.raises(ProbeError, match=r"probes\.jsonl:7: field 'gold' is missing"):
        ProbeRecord.from_dict(data, "probes.jsonl:7")
    data = json.loads(record().to_json())
    data["checkpoints"][1].pop("budget")
    with pytest.raises(ProbeError, match=r"probes\.jsonl:7: field 'checkpoints'"):
        ProbeRecord.from_dict(data, "probes.jsonl:7")


def test_no_number_that_is_none_is_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        record(checkpoints=(checkpoint(0, mean_logprob=float("nan")),)).to_json()


# --- Table ----------------------------------------------------------------------------------------


def test_records_become_arrays() -> None:
    other = record(
        "q2",
        group="g",
        trace_tokens=64,
        finish="length",
        natural_correct=False,
        suffix_tokens=7,
        checkpoints=(
            checkpoint(0, normalized="", correct=False),
            checkpoint(64, normalized="41", ended=True),
            checkpoint(128, ended=True),
        ),
    )
    table = graded_table([record(), other])
    assert (table.n_questions, table.n_checkpoints) == (2, 3)
    assert table.groups == ("key-q1", "g")
    assert table.budgets.tolist() == [0, 64, 128]
    assert table.ended.tolist() == [[False, False, True], [False, True, True]]  # T <= B
    assert table.think_tokens.tolist() == [[0, 64, 90], [0, 64, 64]]
    assert table.truncated.tolist() == [False, True]
    assert table.suffix_tokens == 7
    codes = table.answer_codes
    assert codes[0, 0] == codes[0, 2] == codes[1, 2]
    assert len({codes[1, 0], codes[1, 1], codes[1, 2]}) == 3


def test_after_the_end_one_gets_the_references_answer() -> None:
    wrong_end = record(natural_correct=False, trace_tokens=64)
    table = graded_table([wrong_end])
    assert table.correct_online.tolist() == [[True, False, False]]
    assert table.full_correct.tolist() == [False]
    paper = table.with_reference("last-checkpoint")
    assert paper.full_correct.tolist() == [True]
    assert paper.correct_online.tolist() == [[True, True, True]]


def test_each_question_may_have_positions_of_its_own() -> None:
    rows = (checkpoint(17, normalized="41"), checkpoint(30))
    other = record("q2", checkpoints=rows, natural_answer="It is\nFinal answer: 41")
    silent = record("q3", checkpoints=(), natural_answer=None)
    table = graded_table([record(), other, silent])
    assert not table.is_grid
    none = NO_PROBE
    assert table.positions.tolist() == [[0, 64, 128], [17, 30, none], [none, none, none]]
    assert table.live.tolist() == [[True, True, False], [True, True, False], [False] * 3]
    assert table.think_tokens.tolist() == [[0, 64, 90], [17, 30, 0], [0, 0, 0]]
    codes, natural = table.answer_codes, table.outcomes.natural_code
    assert natural is not None
    assert natural[0] == codes[0, 0] == codes[1, 1]
    assert natural[1] == codes[1, 0] != natural[0]
    assert natural[2] == none == codes[1, 2]
    assert table.take(np.array([0])).budgets.tolist() == [0, 64, 128]
    with pytest.raises(ProbeError, match="positions of question 'q2' must be strictly increasing"):
        graded_table([record(), record("q2", checkpoints=rows[::-1])])


def test_a_natural_answer_that_no_probe_gave_has_a_number_of_its_own() -> None:
    other = record("q2", natural_answer="Final answer: 43", natural_correct=False)
    empty = record("q3", natural_answer="")
    table = graded_table([record(), other, empty])
    assert table.outcomes.natural_code is not None
    assert table.outcomes.natural_code[0] in table.answer_codes
    assert table.outcomes.natural_code[1] not in table.answer_codes
    assert table.outcomes.natural_code[2] == -1


def ungraded(name: str = "q1", **changes: Any) -> ProbeRecord:
    rows = changes.pop("checkpoints", record().checkpoints)
    rows = tuple(replace(c, correct=None) for c in rows)
    return record(name, gold=None, natural_correct=None, checkpoints=rows, **changes)


def test_without_gold_a_reply_is_right_where_it_is_that_of_full_thinking() -> None:
    other = checkpoint(0, normalized="41"), checkpoint(64, normalized=""), checkpoint(128)
    rows = [
        ungraded("q1"),
        ungraded("q2", checkpoints=other, natural_answer="It is\nFinal answer: 41"),
        ungraded("cut", finish="length", natural_answer=None),
        ungraded("cut after an answer", finish="length"),
        ungraded("silent", natural_answer="Well."),
        ungraded("empty", checkpoints=(checkpoint(0, normalized=""),), natural_answer=""),
    ]
    table = graded_table(rows)
    assert table.graded_by == "agreement"
    assert table.full_correct.all()
    assert table.correct.tolist() == [[True] * 3, [True, False, False], *[[False] * 3] * 4]
    # Never stopped, they are what they are.
    assert table.correct_online[2:, 2].all()
    with pytest.raises(ProbeError, match=r"last-checkpoint reference, .* needs gold for every"):
        table.with_reference("last-checkpoint")


def test_a_forced_answer_agrees_with_the_last_one_unless_it_is_empty() -> None:
    codes = np.array([[3, 5, 5], [4, 3, EMPTY_ANSWER], [EMPTY_ANSWER, 4, EMPTY_ANSWER]])
    last = [[False, True, True], [False, False, True], [False, False, True]]
    assert agreeing(codes).tolist() == last
    assert agreeing(codes, np.array([3, -1, 4])).tolist() == [
        [True, False, False], [False, False, False], [False, True, False],
    ]  # fmt: skip


def test_without_gold_a_visible_reply_is_compared_with_the_natural_one() -> None:
    def visible(budget: int, text: str) -> Checkpoint:
        wrong = {"normalized": "41", "visible_correct": None, "visible_tokens": 9}
        return checkpoint(budget, visible_answer=text, **wrong)

    rows = (
        visible(0, "Final answer: 42.0"),
        visible(64, "Final answer: 41"),
        checkpoint(128, ended=True),
    )
    first, second = ungraded(checkpoints=rows), ungraded("q2", checkpoints=rows, finish="length")
    table = graded_table([first, second], on_stop="answer")
    assert table.stop_correct.tolist() == [[True, False, True], [False, False, True]]
    read = ProbeRecord.from_dict(json.loads(first.to_json()), "here")
    assert (read, read.is_graded) == (first, False)


def test_a_part_counts_by_gold_where_all_of_it_has_gold() -> None:
    wrong = record("gold, wrong", natural_correct=False)
    rows = [wrong, ungraded("none"), record("here"), record("there", natural_correct=False)]
    table = graded_table(rows, parts=[0, 1, 1, 2])
    assert table.by_gold is not None
    assert table.by_gold.tolist() == [True, False, False, True]
    assert table.full_correct.tolist() == [False, True, True, False]
    assert [table.take(np.array([k])).graded_by for k in range(4)] == [
        "gold", "agreement", "agreement", "gold",
    ]  # fmt: skip
    assert graded_table(rows).graded_by == "agreement"
    assert graded_table([record("here")]).by_gold is None


def test_an_empty_answer_is_told_from_others() -> None:
    rows = (checkpoint(0, answer="", normalized=""), checkpoint(64), checkpoint(128))
    (codes,) = graded_table([record(checkpoints=rows)]).answer_codes.tolist()
    assert codes[0] == EMPTY_ANSWER
    assert codes[1] == codes[2] >= 0


def test_log_probabilities_may_be_unknown() -> None:
    unknown = checkpoint(128, mean_logprob=None, mean_entropy=None)
    rows = (checkpoint(0), checkpoint(64, mean_entropy=None), unknown)
    # It thinks 90 tokens: the last probe does not happen online.
    table = graded_table([record(checkpoints=rows)])
    assert np.isnan(table.mean_logprob).tolist() == [[False, False, True]]
    assert np.isnan(table.mean_entropy).tolist() == [[False, True, True]]


def test_marker_positions_are_kept() -> None:
    found = [record("a", marker_positions=(10, 70, 80)), record("b", marker_positions=())]
    table = graded_table(found)
    assert table.marker_positions is not None
    assert table.marker_positions.tolist() == [[10, 70, 80], [NO_PROBE] * 3]
    assert table.take(np.array([1])).marker_positions is not None
    assert graded_table([found[0], record("c")]).marker_positions is None


def test_a_question_and_one_entropy_source_are_required() -> None:
    with pytest.raises(ProbeError, match="no finished question"):
        graded_table([])
    rows = (checkpoint(0), checkpoint(64), checkpoint(128, entropy_source="top-k:20"))
    with pytest.raises(ProbeError, match="'q2' has entropy source 'top-k:20'"):
        graded_table([record(), record("q2", checkpoints=rows)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": np.zeros((3, 10), dtype=int)}, "strictly increasing"),
        ({"mean_logprob": np.full((3, 10), np.inf)}, "mean_logprob must be finite, got inf"),
        ({"natural_tokens": None}, "needs natural answers"),
    ],
)
def test_impossible_tables_are_refused(change: dict[str, Any], message: str) -> None:
    table = POPULATIONS[0].draw(3, np.random.default_rng(0))
    with pytest.raises(ProbeError, match=message):
        replace(table, **change)


def test_taking_rows_takes_them_everywhere() -> None:
    table = renamed(POPULATIONS[0].draw(6, np.random.default_rng(0)), "q")
    by_number, by_mask = table.take(np.array([4, 1])), table.take(np.arange(6) % 2 == 0)
    assert by_number.ids == ("q4", "q1")
    assert by_mask.groups == ("q0", "q2", "q4")
    assert np.array_equal(by_number.correct, table.correct[[4, 1]])
    assert np.array_equal(by_number.budgets, table.budgets)
    assert by_mask.natural_correct is not None
    assert table.natural_correct is not None
    assert np.array_equal(by_mask.natural_correct, table.natural_correct[::2])


# --- Archives -------------------------------------------------------------------------------------


def arrays(n: int = 6, m: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "budgets": np.array([0, 100, 200]),
        "correct": np.tile([0, 1, 1], (n, 1)),
        "think_lens": np.array([50, 150, 300, 100, 250, 80]),
        "conf_lp": -rng.random((n, m)),
        "conf_ent": rng.random((n, m)),
        "mkr": rng.random((n, m)) / 100,
        "ans": np.array([["1", "2", "2"]] * n),
        "gold": np.array(["2"] * n),
    }


def write(tmp_path: Path, **changes: Any) -> Path:
    content = {k: v for k, v in {**arrays(), **changes}.items() if v is not None}
    np.savez(tmp_path / "raw.npz", **content)
    return tmp_path / "raw.npz"


def test_an_archive_becomes_a_table(tmp_path: Path) -> None:
    table = read_archive(str(write(tmp_path)))
    assert table.reference == "last-checkpoint"
    assert table.natural_correct is None
    assert table.correct.dtype == bool
    assert (table.probe_tokens == PROBE_CAP).all()
    # The scripts store the density; the table the count.
    expected = arrays()["mkr"] * table.think_tokens
    np.testing.assert_allclose(table.markers, expected)
    assert table.answer_codes[0, 1] == table.answer_codes[0, 2] != table.answer_codes[0, 0]
    with pytest.raises(ProbeError, match="needs natural answers"):
        table.with_reference("natural")


def test_an_archive_without_labels_counts_by_its_last_checkpoint(tmp_path: Path) -> None:
    answers = np.array([["1", "2", "2"]] * 5 + [["", "1", ""]])
    table = read_archive(write(tmp_path, correct=None, ans=answers))
    assert (table.graded_by, table.reference) == ("agreement", "last-checkpoint")
    assert table.correct.tolist() == [*[[False, True, True]] * 5, [False, False, True]]
    assert table.full_correct.all()
    with pytest.raises(ProbeError, match=r"array 'ans' must have shape \(N, m\)"):
        read_archive(write(tmp_path, correct=None, ans=np.array([*"abcdef"])))


def test_an_archive_may_name_its_questions(tmp_path: Path) -> None:
    plain = read_archive(write(tmp_path))
    assert not names_questions(plain.keys)
    table = read_archive(write(tmp_path, ids=np.array([*"abcdef"])))
    assert table.ids == tuple("abcdef")
    assert table.keys == table.groups == tuple(map(name_key, "abcdef"))
    assert names_questions(table.keys)
    np.testing.assert_array_equal(table.correct, plain.correct)
    numbered = read_archive(write(tmp_path, ids=np.arange(6) + 10))
    assert numbered.ids == ("10", "11", "12", "13", "14", "15")


def test_the_meta_file_gives_the_length_of_an_answer(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "meta.json").write_text('{"ans_tokens": 7.5}', encoding="utf-8")
    assert (read_archive(path).probe_tokens == 7.5).all()
    (tmp_path / "meta.json").write_text('{"ans_tokens": 0.5}', encoding="utf-8")
    assert (read_archive(path).probe_tokens == 0.5).all()
    assert read_archive(path).suffix_tokens == 0, "what asks for it was not recorded"
    for content in ('{"ans_tokens": 0}', '{"ans_tokens": "x"}', "[]", "{", '{"ans_tokens": NaN}'):
        (tmp_path / "meta.json").write_text(content, encoding="utf-8")
        with pytest.raises(ProbeError, match="ans_tokens"):
            read_archive(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conf_lp": None}, "array 'conf_lp' is missing"),
        ({"correct": np.zeros(6)}, r"shape \(N, m\)"),
        ({"correct": np.tile([0, 1, 2], (6, 1))}, "must hold 0 and 1 only"),
        ({"correct": np.ones((6, 3))}, "one class of labels only"),
        ({"conf_ent": np.zeros((6, 2))}, "'conf_ent' must have shape"),
        ({"mkr": np.full((6, 3), np.inf)}, "'mkr' must hold finite numbers"),
        ({"think_lens": np.array(["a"] * 6)}, "'think_lens' must hold finite numbers"),
        ({"budgets": np.array([0, 100, 100])}, "strictly increasing"),
        ({"ans": np.array([[{}] * 3] * 6)}, "not a readable .npz archive"),  # needs pickle
        ({"ids": np.arange(5)}, r"'ids' must hold 6 names or whole numbers, got shape \(5,\)"),
        ({"ids": np.linspace(0, 1, 6)}, "'ids' must hold 6 names or whole numbers, .* float64"),
        ({"ids": np.array([*"abcda", "e"])}, "every question once, got 'a' in rows 0 and 4"),
        ({"ids": np.array([*"abcd", " ", "e"])}, "must name every question, got ' ' in row 4"),
    ],
)
def test_broken_archives_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ProbeError, match=message):
        read_archive(write(tmp_path, **change))


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="cannot read the archive"):
        read_archive(tmp_path / "none.npz")
    (tmp_path / "raw.npz").write_bytes(b"PK\x03\x04 but no more")
    with pytest.raises(ProbeError, match=r"raw\.npz"):
        read_archive(tmp_path / "raw.npz")


def test_answers_are_compared_as_whole_strings() -> None:
    codes, _ = answer_codes(np.array([["a", "a\0", "a"]], dtype=object))
    assert codes.tolist() == [[0, 1, 0]]


def test_what_follows_an_answer_is_kept_where_the_cue_is_open() -> None:
    row = record(checkpoints=tuple(checkpoint(b, closed_by_itself=b > 0) for b in (0, 64, 128)))
    table = graded_table([row, row])
    assert table.closed_by_itself is not None
    assert table.closed_by_itself.tolist() == [[False, True, True]] * 2
    columns = np.array([[1, -1], [0, 2]])
    moved = [table.select([0, 2]), table.at(columns), table.take(np.array([1]))]
    assert [t.closed_by_itself.tolist() for t in moved if t.closed_by_itself is not None] == [
        [[False, True]] * 2,
        [[True, False], [False, True]],
        [[False, True, True]],
    ]
    assert graded_table([record(), row]).closed_by_itself is None
