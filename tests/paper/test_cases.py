"""Cases: each question in the kinds that its stops, answers and costs say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stopadvisor.paper.cases import CASES, RulePair, find_cases

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


def duel_of(rows: list[Row]) -> RulePair:
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    at, there, learned, scalar, full, cost, other, whole = columns
    return RulePair(
        at.astype(np.int64),
        there.astype(np.int64),
        learned.astype(np.bool_),
        scalar.astype(np.bool_),
        full.astype(np.bool_),
        cost.astype(np.float64),
        other.astype(np.float64),
        whole.astype(np.float64),
    )


@given(ROWS)
def test_cases_are_their_definitions(rows: list[Row]) -> None:
    found = {case.name: case.rows.tolist() for case in find_cases(duel_of(rows))}
    assert tuple(found) == CASES
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
    wins = next(case for case in find_cases(duel_of(rows)) if case.name == "learned wins")
    assert wins.rows.tolist() == [1, 2, 0]
