"""Study `failure-cases`: each case by its definition, at published thresholds, and texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopadvisor.ground.errors import StudyError
from stopadvisor.runs.sources import open_source
from stopadvisor.studies.failure_cases import find_cases
from stopadvisor.studies.registry import outline_of
from stopadvisor.studies.tables import StudyOptions
from tests.material import make_run
from tests.studies.material import QUICK, rows_of, study

run = study("failure-cases")


@pytest.mark.slow
def test_without_the_workload_s_file_only_the_questions_are_gone(tmp_path: Path) -> None:
    source = open_source(make_run(tmp_path / "run", 150))
    texts = rows_of(run([source], QUICK), "texts")
    assert all(row["question"] for row in texts)
    (tmp_path / "run-sums.jsonl").unlink()
    gone = rows_of(run([source], QUICK), "texts")
    assert gone == [row | {"question": None} for row in texts]
    assert gone


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
