"""Study `failure-cases`: each case by its definition, at published thresholds, and texts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopadvisor.ground.errors import StudyError
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import open_source
from stopadvisor.studies.failure_cases import find_cases
from stopadvisor.studies.registry import outline_of
from stopadvisor.studies.tables import StudyOptions
from stopadvisor.workload.questions import read_workload
from tests.material import ARCHIVES, make_run
from tests.studies.material import QUICK, Archive, row_of, rows_of, studied, study
from tests.studies.plain import load, scores_of, split, stops_of

run = study("failure-cases")


@pytest.mark.slow
def test_cases_are_those_of_the_published_thresholds(archive: Archive) -> None:
    found = studied(run, [archive("mixed")], QUICK)
    at = json.loads((ARCHIVES / "expected.json").read_text())["mixed"]["alpha"]["0.15"]
    data = load("mixed")
    _, test = split(len(data["correct"]))
    correct, thinking = data["correct"][test] == 1, data["thinking"][test]
    full, whole, rows = correct[:, -1], data["think_lens"][test] + 48, np.arange(test.size)
    stops = [
        stops_of(scores_of(data)[at[side]["policy"]][test], at[side]["tau"])
        for side in ("learned", "scalar")
    ]
    right = [correct[rows, each] for each in stops]
    costs = [thinking[rows, each] + 48 * (each + 1) for each in stops]
    expected = find_cases(stops, right, costs, full, whole)
    for case, members in expected.items():
        row = row_of(found, "counts", case=case)
        assert (row["learned_family"], row["scalar_family"]) == ("learned", at["scalar"]["policy"])
        assert row["questions"] == members.size
        cases = [row for row in rows_of(found, "cases") if row["case"] == case]
        assert [row["id"] for row in cases] == [f"row-{test[k]}" for k in members[:5]]
        for row, k in zip(cases, members.tolist(), strict=False):
            assert [row["learned_checkpoint"], row["scalar_checkpoint"]] == [s[k] for s in stops]
            assert (row["learned_cost"], row["full_cost"]) == (costs[0][k], whole[k])
            steps = [r for r in rows_of(found, "trajectories") if r["id"] == row["id"]]
            assert [r["answer"] for r in steps] == data["ans"][test[k]].tolist()
            assert [r["correct"] for r in steps] == correct[k].tolist()
            scores = data["p_stop"][test[k]].tolist()
            assert [r["learned_score"] for r in steps] == pytest.approx(scores)
    lost = row_of(found, "counts", case="lost-correct")
    assert lost["share"] == pytest.approx(at["learned"]["risk"])


@pytest.mark.slow
def test_texts_are_the_runs_own(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", 150)
    source = open_source(path)
    found = run([source], QUICK)
    records = {r.id: r for r in RunDirectory.load(path).records()}
    asked = read_workload(tmp_path / "run-sums.jsonl")
    questions = {q.id: q.messages[-1]["content"] for q in asked.questions}
    texts = rows_of(found, "texts")
    assert texts
    for row in texts:
        record = records[str(row["id"])]
        assert row["question"] == questions[record.id]
        assert row["gold"] == record.gold
        assert row["natural_answer"] == (record.natural_answer or "").strip()
    for row in rows_of(found, "trajectories"):
        checkpoint = records[str(row["id"])].checkpoints[int(str(row["checkpoint"]))]
        assert (row["answer"], row["budget"]) == (checkpoint.answer, checkpoint.budget)
        assert (row["correct"], row["ended"]) == (checkpoint.correct, checkpoint.ended)
    # Nothing of a question that is not fit is told before anybody has looked.
    fit = set(source.part("fit").ids)
    assert {str(row["id"]) for row in rows_of(found, "cases")} <= fit

    (tmp_path / "run-sums.jsonl").unlink()
    gone = rows_of(run([source], QUICK), "texts")
    assert [row["question"] for row in gone] == [None] * len(texts)
    assert [row["gold"] for row in gone] == [row["gold"] for row in texts]


@pytest.mark.parametrize("value", ["0", "-1", "few", ""])
def test_the_number_of_cases_is_checked(value: str) -> None:
    with pytest.raises(StudyError, match="option cases must be a whole number >= 1"):
        outline_of("failure-cases").whole(StudyOptions(extra={"cases": value}), "cases")


# --- Cases ----------------------------------------------------------------------------------------


Row = tuple[int, int, bool, bool, bool, int, int, int]
ROWS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, 3),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        *([st.integers(1, 9)] * 3),
    ),
    min_size=1,
    max_size=12,
)


def cases_of(rows: list[Row]) -> dict[str, list[int]]:
    at, there, learned, scalar, full, cost, other, whole = map(np.array, zip(*rows, strict=True))
    found = find_cases((at, there), (learned, scalar), (cost, other), full, whole)
    return {name: here.tolist() for name, here in found.items()}


@given(ROWS)
def test_cases_are_their_definitions(rows: list[Row]) -> None:
    found = cases_of(rows)
    for i, (at, there, learned, scalar, full, cost, other, whole) in enumerate(rows):
        kinds = {name for name, members in found.items() if i in members}
        expected = set()
        if full and not learned:
            expected.add("lost-correct")
        if full and learned and not scalar:
            expected.add("scalar lost-correct")
        if learned and cost > whole:
            expected.add("overhead failure")
        if full and learned and scalar and at < there and cost < other:
            expected.add("learned wins")
        if full and learned and scalar and there < at and other < cost:
            expected.add("scalar wins")
        assert kinds == expected


def test_the_largest_difference_in_cost_comes_first() -> None:
    rows: list[Row] = [
        (1, 3, True, True, True, 5, 6, 9),
        (0, 3, True, True, True, 1, 9, 9),
        (1, 3, True, True, True, 3, 6, 9),
    ]
    assert cases_of(rows)["learned wins"] == [1, 2, 0]
