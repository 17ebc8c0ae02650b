"""Importing recorded forced answers: the fields of a line, and the resulting run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.answers.grading import GRADING, Grader
from stopadvisor.collection.grades import regrade_run
from stopadvisor.ground.errors import OutputError, ProbeError, WorkloadError
from stopadvisor.ground.progress import Progress
from stopadvisor.probes.asking import is_open_cue
from stopadvisor.probes.table import EMPTY_ANSWER
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.imported import IMPORTED, write_recording
from stopadvisor.runs.recording import Recording, read_recording
from stopadvisor.runs.sources import Source, open_source
from stopadvisor.workload.questions import content_key, name_key
from tests.material import make_run


def probe(budget: int, answer: str = "7", **changes: Any) -> dict[str, Any]:
    found = {"budget": budget, "answer": answer, "correct": answer == "7", "probe_tokens": 4}
    return {**found, **changes}


def line(name: str = "a", **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": name,
        "trace_tokens": 100,
        "finish": "stop",
        "natural_answer": "The answer is 7.",
        "natural_correct": True,
        "natural_answer_tokens": 9,
        "task": "numeric",
        "checkpoints": [probe(10, "4"), probe(64)],
    }
    return {name: value for name, value in {**fields, **changes}.items() if value is not None}


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "recorded.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def read(folder: Path, *rows: dict[str, Any], **options: Any) -> Recording:
    with Grader() as grader:
        return read_recording(write(folder, *rows), grader, **options)


def imported(folder: Path, *rows: dict[str, Any], **options: Any) -> RunDirectory:
    settings = {"cap": 200, "suffix_tokens": 12, "model": None, "seed": 0, **options}
    settings.setdefault("fractions", (0.4, 0.4, 0.2))
    return RunDirectory.load(write_recording(folder / "run", read(folder, *rows), **settings).run)


# --- Reading --------------------------------------------------------------------------------------


def test_every_question_keeps_its_own_positions(tmp_path: Path) -> None:
    rows = (
        line("a", checkpoints=[probe(10, "4"), probe(64)], prompt_tokens=30, category="sums"),
        line("b", checkpoints=[probe(7), probe(90, ""), probe(120)], finish="length"),
        line("c", checkpoints=[]),
    )
    table = imported(tmp_path, *rows).table().unseal()
    assert table.ids == ("a", "b", "c")
    assert table.positions.tolist() == [[10, 64, -1], [7, 90, 120], [-1, -1, -1]]
    assert table.live.tolist() == [[True, True, False], [True, True, False], [False] * 3]
    assert table.correct.tolist()[:2] == [[False, True, False], [True, False, True]]
    assert table.answer_codes[1, 1] == EMPTY_ANSWER
    assert table.answer_codes[0, 1] == table.answer_codes[1, 0] != table.answer_codes[0, 0]
    assert table.outcomes.natural_code is not None
    assert table.outcomes.natural_code[0] == table.answer_codes[0, 1]
    assert table.truncated.tolist() == [False, True, False]
    assert table.prompt_tokens.tolist() == [30, 0, 0]
    assert table.natural_tokens is not None
    assert table.natural_tokens.tolist() == [9, 9, 9]
    assert table.categories == ("sums", None, None)
    assert table.marker_positions is not None
    assert table.marker_positions.tolist() == [[10, 64], [7, 90], [-1, -1]]


def test_uncertainty_is_kept_where_it_was_recorded(tmp_path: Path) -> None:
    known = line("a", checkpoints=[probe(10, mean_logprob=-0.5), probe(64, mean_logprob=1e-6)])
    table = imported(tmp_path, known, line("b")).table()
    assert table.entropy_source == "full"
    assert table.mean_logprob[0].tolist() == [-0.5, 0.0]
    assert np.isnan(table.mean_logprob[1]).all()
    assert np.isnan(table.mean_entropy).all()
    (tmp_path / "other").mkdir()
    assert imported(tmp_path / "other", line()).table().entropy_source == "none"


def test_a_named_entropy_source_is_kept(tmp_path: Path) -> None:
    top = probe(10, mean_logprob=-0.5, entropy_source="top-k:20")
    assert read(tmp_path, line("a", checkpoints=[top]), line("b")).entropy_source == "top-k:20"
    other = probe(10, mean_logprob=-0.5, entropy_source="full")
    with pytest.raises(WorkloadError, match=r":2: field 'entropy_source': expected 'top-k:20' as"):
        read(tmp_path, line("a", checkpoints=[top]), line("b", checkpoints=[other]))


def test_markers_are_counted_from_their_positions(tmp_path: Path) -> None:
    rows = (
        line("a", marker_positions=[0, 10, 100]),
        line("b", marker_positions=[], checkpoints=[probe(10, markers=2.5)]),
    )
    table = imported(tmp_path, *rows).table()
    assert table.markers.tolist() == [[1.0, 2.0], [2.5, 0.0]]  # before token 10 lies that of 0
    assert table.marker_positions is not None
    assert table.marker_positions.tolist() == [[0, 10, 100], [-1, -1, -1]]


def test_unshared_positions_are_taken_for_markers(tmp_path: Path) -> None:
    """The records are the same as with explicit `marker_positions`.

    All are asked at 10, and at 50 both that still think; beyond 100 one thinks alone.
    """
    places = {
        "a": (200, [5, 10, 50, 64, 150]),
        "b": (100, [7, 10, 50, 90, 95]),
        "c": (30, [8, 10, 20]),
    }
    bare, named = (
        [
            line(
                name,
                trace_tokens=length,
                checkpoints=[probe(p) for p in found],
                marker_positions=[p for p in found if p not in (10, 50)] if known else None,
            )
            for name, (length, found) in places.items()
        ]
        for known in (False, True)
    )
    taken, told = read(tmp_path, *bare), read(tmp_path, *named)
    assert taken.records == told.records
    assert (taken.positions_are_markers, told.positions_are_markers) == (True, False)
    assert [r.marker_positions for r in taken.records] == [(5, 64, 150), (7, 90, 95), (8, 20)]


def test_where_half_of_the_positions_are_shared_they_are_a_grid(tmp_path: Path) -> None:
    rows = [line(name, checkpoints=[probe(10), probe(at)]) for name, at in (("a", 64), ("b", 90))]
    assert not read(tmp_path, *rows).positions_are_markers


@pytest.mark.parametrize(
    "missing", [None, 64], ids=["each is asked while it thinks", "one answer is missing"]
)
def test_shared_positions_are_not_taken_for_markers(tmp_path: Path, missing: int | None) -> None:
    lengths = {"a": 100, "b": 70, "c": 60, "d": 30}
    rows = [
        line(
            name,
            trace_tokens=length,
            checkpoints=[
                probe(p) for p in (10, 20, 64, 90) if p < length and (name, p) != ("a", missing)
            ],
        )
        for name, length in lengths.items()
    ]
    taken = read(tmp_path, *rows)
    assert not taken.positions_are_markers
    assert {record.marker_positions for record in taken.records} == {None}


def test_answers_after_all_thinking_are_not_taken_for_markers(tmp_path: Path) -> None:
    rows = [line(f"q{n}", trace_tokens=n, checkpoints=[probe(n)]) for n in range(60, 66)]
    found = read(tmp_path, *rows)
    assert not found.positions_are_markers
    assert all(record.checkpoints[0].ended for record in found.records)


def test_whether_the_model_closed_its_thinking_itself_is_kept(tmp_path: Path) -> None:
    rows = [line(name, checkpoints=[probe(5, closed_by_itself=name == "a")]) for name in "ab"]
    run = imported(tmp_path, *rows)
    table = run.table()
    assert table.closed_by_itself is not None
    assert table.closed_by_itself.tolist() == [[True], [False]]
    assert is_open_cue(run.plan.cue)
    with pytest.raises(WorkloadError, match=r"closed_by_itself': expected true or false, got 1"):
        read(tmp_path, line("c", checkpoints=[probe(5, closed_by_itself=1)]))


def test_labels_that_are_missing_come_from_gold(tmp_path: Path) -> None:
    rows = (
        line("a", gold="7.0", natural_correct=None, checkpoints=[probe(5, "7", correct=None)]),
        line("b", gold="8", natural_correct=None, checkpoints=[probe(5, "8", correct=False)]),
        line("c", gold=7, task=None, checkpoints=[probe(5, "$7", correct=None)]),
    )
    found = read(tmp_path, *rows)
    first, second, third = found.records
    assert (first.natural_correct, first.checkpoints[0].correct) == (True, True)
    assert (second.natural_correct, second.checkpoints[0].correct) == (False, False)
    assert (third.task, third.gold, third.checkpoints[0].correct) == ("numeric", "7", True)
    assert found.n_graded == 4
    assert imported(tmp_path, *rows).manifest["grading"]["grader"] == "recorded"


@pytest.mark.parametrize(("answer", "gold"), [(None, "7"), ("", "7"), (" ", "7"), (None, None)])
def test_an_answer_that_has_tokens_but_no_text_is_refused(
    tmp_path: Path, answer: str | None, gold: str | None
) -> None:
    """It would count as wrong: whatever a stop says, nothing could be lost there."""
    row = line("a", gold=gold, natural_answer=answer, natural_correct=None)
    with pytest.raises(WorkloadError, match=r"natural_answer': expected the text of 9 natural_ans"):
        read(tmp_path, row)
    for said in ({"natural_correct": False}, {"finish": "length"}, {"natural_answer_tokens": 0}):
        (found,) = read(tmp_path, row | said).records
        assert found.natural_correct is False


def test_a_recording_without_labels_is_graded_like_any_run(tmp_path: Path) -> None:
    bare = [probe(5, correct=None), probe(9, "", correct=None)]
    row = line("a", gold="7", natural_correct=None, checkpoints=bare)
    run = imported(tmp_path, row)
    assert run.manifest["grading"] == GRADING
    assert [c.correct for c in run.records()[0].checkpoints] == [True, False]


def test_a_runs_own_lines_can_be_imported(tmp_path: Path) -> None:
    made = RunDirectory.load(make_run(tmp_path / "made", 30))
    with Grader() as grader:
        found = read_recording(
            made.probes_path, grader, suffix_tokens=made.records()[0].suffix_tokens
        )
    assert found.records == tuple(made.records())
    assert found.budgets == made.plan.budgets
    again = write_recording(
        tmp_path / "again",
        found,
        cap=256,
        suffix_tokens=2,
        model=None,
        seed=0,
        fractions=(0.4, 0.4, 0.2),
    )
    assert again.budgets == made.plan.budgets
    assert open_source(again.run).fingerprint() == open_source(made.path).fingerprint()


def test_questions_are_identified_by_key_content_or_id(tmp_path: Path) -> None:
    rows = (line("a", key="k"), line("b", question="1 + 1?"), line("c"), line("d", group="g"))
    found = read(tmp_path, *rows).records
    content = content_key([{"role": "user", "content": "1 + 1?"}])
    assert [r.key for r in found] == ["k", content, name_key("c"), name_key("d")]
    assert found[3].group == "g"
    assert {r.sample for r in found} == {0}
    two = read(tmp_path, line("a", sample=0), line("a", sample=1)).records
    assert [(r.key, r.sample) for r in two] == [(name_key("a"), 0), (name_key("a"), 1)]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no id": ({"id": None}, r"'id': expected a name"),
    "length is a flag": ({"trace_tokens": True}, r"'trace_tokens': expected a whole number"),
    "over the cap": ({"trace_tokens": 201}, r"'trace_tokens': expected at most .* 200\), got 201"),
    "finish": ({"finish": "eos"}, r"'finish': expected 'stop' or 'length', got .eos."),
    "answer": ({"natural_answer": ["7"]}, r"'natural_answer': expected text"),
    "label": ({"natural_correct": 1}, r"'natural_correct': expected true or false, got 1"),
    "task": ({"task": "poem"}, r"'task': expected one of"),
    "gold": ({"gold": "seven"}, r"'gold': expected a number"),
    "sample": ({"sample": -1}, r"'sample': expected a whole number from 0 to 16777216, got -1"),
    "more tokens than a trace can have": (
        {"natural_answer_tokens": 10**30},
        r"'natural_answer_tokens': expected a whole number from 0 to 16777216, got 10+",
    ),
    "no checkpoints": ({"checkpoints": {}}, r"'checkpoints': expected a list"),
    "a checkpoint": ({"checkpoints": [3]}, r"'checkpoints\[0\]': expected an object, got 3"),
    "budget": (
        {"checkpoints": [probe(9), probe(9)]},
        r"'checkpoints\[1\].budget': expected more thinking tokens than before \(9\), got 9",
    ),
    "negative": ({"checkpoints": [probe(-1)]}, r"'checkpoints\[0\].budget': .* got -1"),
    "tokens": (
        {"checkpoints": [probe(1, probe_tokens=None)]},
        r"'checkpoints\[0\].probe_tokens': expected",
    ),
    "log": (
        {"checkpoints": [probe(1, mean_logprob=0.4)]},
        r"'checkpoints\[0\].mean_logprob': expected a number <= 0, got .*0.4",
    ),
    "more than rounding": (
        {"checkpoints": [probe(1, mean_logprob=1e-5)]},
        r"'checkpoints\[0\].mean_logprob': expected a number <= 0",
    ),
    "no float": (
        {"checkpoints": [probe(1, mean_entropy=10**400)]},
        r"'checkpoints\[0\].mean_entropy': expected a number >= 0, got 10+",
    ),
    "nan": (
        {"checkpoints": [probe(1, mean_entropy=float("nan"))]},
        r"'checkpoints\[0\].mean_entropy': expected a n",
    ),
    "markers": (
        {"checkpoints": [probe(1, markers="2")]},
        r"'checkpoints\[0\].markers': expected a number >=",
    ),
    "marker order": ({"marker_positions": [4, 4]}, r"'marker_positions': expected increasing"),
    "part of a marker": ({"marker_positions": [1.5]}, r"'marker_positions': expected increasing"),
    "marker place": (
        {"marker_positions": [101]},
        r"'marker_positions': .* to trace_tokens \(100\)",
    ),
    "no gold": (
        {"checkpoints": [probe(1, correct=None)]},
        r"'checkpoints\[0\].correct': expected .* 'gold' .* got neither in a line with other",
    ),
    "natural without gold": ({"natural_correct": None}, r"'natural_correct': expected .* 'gold'"),
}


def test_a_line_may_have_neither_labels_nor_gold(tmp_path: Path) -> None:
    bare = line("a", natural_correct=None, task=None, checkpoints=[
        probe(10, "7.0", correct=None), probe(64, "", correct=None)
    ])  # fmt: skip
    found = read(tmp_path, bare, line("b", natural_correct=None, task=None, gold="7"))
    assert [record.is_graded for record in found.records] == [False, True]
    assert (found.n_ungraded, found.n_graded) == (1, 1)
    assert found.grading["grader"] == "recorded"
    assert (found.records[0].task, found.records[0].gold) == ("math", None)
    table = imported(tmp_path, bare).table().unseal()
    assert (table.graded_by, table.correct.tolist()) == ("agreement", [[True, False]])


@pytest.mark.parametrize("grouped", [False, True])
def test_only_the_part_of_a_line_without_gold_is_graded_by_agreement(
    tmp_path: Path, grouped: bool
) -> None:
    bare = {"natural_correct": None, "checkpoints": [probe(10, correct=None)]}

    def split(name: str, ungraded: int | None) -> Source:
        rows = [line(f"q{k}", group=f"g{k // 2}" if grouped else None) for k in range(20)]
        rows = [row | (bare if k == ungraded else {}) for k, row in enumerate(rows)]
        (tmp_path / name).mkdir()
        return open_source(imported(tmp_path / name, *rows, fractions=(0.5, 0.5, 0.0)).path)

    parts = split("whole", None).parts.tolist()
    assert (parts[::2] == parts[1::2]) == grouped
    source = split("one", parts.index(1))
    assert source.parts.tolist() == parts
    assert (source.part("fit").graded_by, source.graded_by) == ("gold", "agreement")


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=list(REFUSED))
def test_a_malformed_line_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    wrong = {**line("b"), **changes}
    rows = line("a"), {name: value for name, value in wrong.items() if value is not None}
    with pytest.raises(WorkloadError, match=rf"recorded\.jsonl:2: field {message}"):
        read(tmp_path, *rows, cap=200)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (line("a"), r":2: field 'id': expected a trace once, .* line 1"),
        (line("a", sample=1, key="other"), r":2: field 'key': expected .* in .*:1, got .other."),
        (line("b", key=name_key("a"), group="g"), r":2: field 'group': expected None as .*:1, got"),
        (line("b", marker_positions=[]), r":2: field 'marker_positions': expected it in every"),
        (
            line("a", sample=2),
            r":2: field 'sample': expected sample 1 of 'a' in the file, too, got 2",
        ),
        (
            line("b", sample=1),
            r":2: field 'sample': expected sample 0 of 'b' in the file, too, got 1",
        ),
    ],
)
def test_lines_must_fit_together(tmp_path: Path, second: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        read(tmp_path, line("a"), second)


def test_a_file_needs_forced_answers(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"recorded\.jsonl: field 'checkpoints': .* got none"):
        read(tmp_path, line(checkpoints=[]))


# --- Writing --------------------------------------------------------------------------------------


def test_the_manifest_says_what_is_known(tmp_path: Path) -> None:
    run = imported(tmp_path, line(), line("b", finish="length"), seed=3, fractions=(0.5, 0.5, 0))
    assert run.manifest["engine"]["engine"] == IMPORTED
    assert run.manifest["engine"]["model"] is None
    assert run.plan.max_think == 200
    assert run.plan.budgets == (10, 64)
    assert run.manifest["split"] == {"seed": 3, "fractions": [0.5, 0.5, 0]}
    assert run.manifest["workload"]["n_questions"] == 2
    source = open_source(run.path)
    assert (source.model, source.engine) == (None, IMPORTED)
    assert not source.is_archive


def test_what_was_imported_is_counted(tmp_path: Path) -> None:
    bare = {"natural_correct": None, "task": None, "checkpoints": [probe(9, correct=None)]}
    rows = (line(), line(sample=1, finish="length"), line("b", **bare), line("c", **bare, gold="7"))
    settings: dict[str, Any] = {"suffix_tokens": 3, "model": "m", "seed": 0}
    found = write_recording(
        tmp_path / "run", read(tmp_path, *rows), cap=150, fractions=(0.4, 0.4, 0.2), **settings
    )
    assert (found.n_questions, found.n_traces, found.n_truncated, found.n_probes) == (3, 4, 1, 6)
    assert (found.n_graded, found.n_ungraded, found.budgets) == (2, 1, None)
    assert (found.max_think, found.suffix_tokens, found.model) == (150, 3, "m")
    run = RunDirectory.load(found.run)
    assert not is_open_cue(run.plan.cue)
    assert run.manifest["workload"]["n_questions"] == 3


def test_the_default_cap_is_the_longest_trace(tmp_path: Path) -> None:
    run = imported(tmp_path, line(), line("b", trace_tokens=170), cap=None, model="m")
    assert run.plan.max_think == 170
    assert open_source(run.path).model == "m"
    assert read(tmp_path, line("b", trace_tokens=170), cap=170).longest == 170
    for length in (0, 1):
        (tmp_path / f"{length}").mkdir()
        row = line(trace_tokens=length, checkpoints=[probe(0)])
        assert imported(tmp_path / f"{length}", row, cap=None).plan.max_think == 1


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    imported(tmp_path, line())
    with pytest.raises(OutputError, match="already exists"):
        imported(tmp_path, line())


def test_labels_that_gold_cannot_give_are_not_graded_again(tmp_path: Path) -> None:
    run = imported(tmp_path, line())
    before = run.probes_path.read_bytes()
    with pytest.raises(ProbeError, match=r"question 'a' was imported .* no gold"):
        regrade_run(run.path, Progress())
    assert run.probes_path.read_bytes() == before
