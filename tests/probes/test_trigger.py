"""Positions of the three triggers, held against a plain search of the whole trace."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopadvisor.ground.errors import PolicyError
from stopadvisor.probes.trigger import (
    ListedTrigger,
    MarkerTrigger,
    Trigger,
    recorded_positions,
    stride,
)

MARKERS = ((1,), (2, 3), (2, 2, 4))


def walked(trigger: Trigger, ids: Sequence[int], pieces: Sequence[int]) -> list[int]:
    """All positions of a trace whose thinking comes in pieces of these sizes, then the rest."""
    positions, found, start = trigger.start(), [], 0
    for size in [*pieces, len(ids)]:
        piece = ids[start : start + size]
        positions.feed(piece if trigger.needs_ids else len(piece))
        start += len(piece)
        if start == len(ids):
            positions.finish()
        while (position := positions.next()) is not None:
            assert position < start, "not known to lie inside the trace yet"
            assert positions.next() == position, "the same again until it was probed"
            found.append(position)
            positions.advance()
        if positions.wanted is None:
            assert positions.earliest is None
        else:
            assert positions.earliest is not None
            assert positions.earliest < positions.wanted
    return found


def searched(
    ids: Sequence[int], trigger: MarkerTrigger, markers: Sequence[tuple[int, ...]] = MARKERS
) -> list[int]:
    """The marker rule as its definition says it, over a whole trace."""
    found: list[int] = []
    last = 0
    counted = [
        start
        for start in range(len(ids))
        if any(tuple(ids[start : start + len(m)]) == m for m in markers)
    ][: trigger.max_markers]
    while len(found) < trigger.max_probes:
        after = [start for start in counted if start >= last + trigger.min_gap]
        if not after:
            break
        last = min(after)
        found.append(last)
    if trigger.stop_at is not None:
        found = [position for position in found if position < trigger.stop_at]
        found += [trigger.stop_at] if trigger.stop_at < len(ids) else []
    return found


@pytest.mark.parametrize(
    ("trigger", "most"),
    [
        (ListedTrigger(()), 0),
        (ListedTrigger((0, 5)), 2),
        (stride(16, cap=16), 1),
        (stride(16, cap=15), 0),
        (stride(16, cap=20, first=21), 0),
        (stride(16, cap=64, stop_at=8), 1),
        (MarkerTrigger(MARKERS, 1, 3), 3),
        (MarkerTrigger(MARKERS, 1, 3, stop_at=64), 4),
    ],
)
def test_how_many_positions_a_trace_can_have(trigger: Trigger, most: int) -> None:
    assert trigger.most_probes == most


THINKING = st.lists(st.integers(0, 4), max_size=60)
PIECES = st.lists(st.integers(0, 9), max_size=30)


@given(
    ids=THINKING,
    pieces=PIECES,
    min_gap=st.integers(1, 9),
    max_probes=st.integers(1, 8),
    max_markers=st.none() | st.integers(1, 9),
    stop_at=st.none() | st.integers(0, 60),
)
def test_markers_are_found_whatever_the_pieces(
    ids: list[int],
    pieces: list[int],
    min_gap: int,
    max_probes: int,
    max_markers: int | None,
    stop_at: int | None,
) -> None:
    trigger = MarkerTrigger(MARKERS, min_gap, max_probes, max_markers, stop_at)
    expected = searched(ids, trigger)
    assert walked(trigger, ids, pieces) == expected
    assert walked(trigger, ids, [1] * len(ids)) == expected
    at = [i for i in range(len(ids)) if any(tuple(ids[i : i + len(m)]) == m for m in MARKERS)]
    assert recorded_positions(trigger, len(ids), at) == tuple(expected)


@given(ids=THINKING, pieces=PIECES, every=st.integers(1, 20), cap=st.integers(1, 70))
def test_a_stride_is_every_so_many_tokens_up_to_the_cap(
    ids: list[int], pieces: list[int], every: int, cap: int
) -> None:
    trigger = stride(every, cap)
    inside = [at for at in range(1, min(cap, len(ids) - 1) + 1) if at % every == 0]
    assert walked(trigger, ids, pieces) == inside


@given(
    ids=THINKING,
    pieces=PIECES,
    every=st.integers(1, 20),
    first=st.none() | st.integers(0, 30),
    stop_at=st.integers(0, 70),
)
def test_a_stride_may_begin_late_and_ends_where_everybody_stops(
    ids: list[int], pieces: list[int], every: int, first: int | None, stop_at: int
) -> None:
    trigger = stride(every, 1000, first, stop_at)
    begin = every if first is None else first
    listed = [at for at in range(begin, stop_at) if (at - begin) % every == 0]
    inside = [at for at in (*listed, stop_at) if at < len(ids)]
    assert walked(trigger, ids, pieces) == inside
    assert trigger.positions == (*listed, stop_at)


@given(ids=THINKING, pieces=PIECES, budgets=st.sets(st.integers(0, 70), max_size=6))
def test_a_grid_is_its_budgets_inside_the_trace(
    ids: list[int], pieces: list[int], budgets: set[int]
) -> None:
    trigger = ListedTrigger(tuple(sorted(budgets)))
    assert walked(trigger, ids, pieces) == [b for b in sorted(budgets) if b < len(ids)]


def test_the_position_is_the_last_token_before_the_marker() -> None:
    #      0  1  2  3  4  5  6  7  8
    ids = [0, 0, 2, 3, 0, 0, 1, 0, 1]
    assert walked(MarkerTrigger(MARKERS, 1, 9), ids, []) == [2, 6, 8]
    assert walked(MarkerTrigger(MARKERS, 3, 9), ids, []) == [6]
    assert walked(MarkerTrigger(MARKERS, 1, 2), ids, []) == [2, 6]
    assert walked(MarkerTrigger(MARKERS, 3, 9, max_markers=1), ids, []) == [], "2 comes too soon"
    assert walked(MarkerTrigger(MARKERS, 3, 9, max_markers=2), ids, []) == [6]
    assert walked(MarkerTrigger(MARKERS, 1, 1, stop_at=7), ids, []) == [2, 7]
    assert walked(MarkerTrigger(MARKERS, 1, 9, stop_at=6), ids, []) == [2, 6]


def test_a_marker_that_the_end_cuts_off_is_none() -> None:
    assert walked(MarkerTrigger(((2, 3),), 1, 9), [0, 0, 2], []) == []
    assert walked(MarkerTrigger(((2, 3),), 1, 9, stop_at=2), [0, 0, 2], []) == [2]


def test_an_unfinished_marker_holds_the_next_position_back() -> None:
    positions = MarkerTrigger(((2, 2, 4),), 1, 9, stop_at=4).start()
    positions.feed([0, 0, 0, 2, 2])
    assert positions.next() is None, "a marker may begin at 3"
    assert (positions.earliest, positions.wanted) == (3, 6)
    positions.feed([4])
    assert positions.next() == 3


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ListedTrigger((4, 4)), "strictly increasing"),
        (lambda: ListedTrigger((-1, 4)), "strictly increasing integers >= 0"),
        (lambda: stride(0, 10), "every >= 1, got 0, 0 and 10"),
        (lambda: MarkerTrigger((), 1, 1).start(), "knows no marker's token ids"),
        (lambda: MarkerTrigger(((1,), ()), 1, 1), "at least one token id"),
        (lambda: MarkerTrigger(MARKERS, 0, 1), "min_gap must be at least 1"),
        (lambda: MarkerTrigger(MARKERS, 1, 0), "max_probes must be at least 1"),
        (lambda: MarkerTrigger(MARKERS, 1, 1).start().feed(3), "needs the tokens' ids"),
        (lambda: MarkerTrigger(MARKERS, 1, 1, max_markers=0), "max_markers must be at least 1"),
        (lambda: MarkerTrigger(MARKERS, 1, 1, stop_at=-1), "stop_at must be at least 0, got -1"),
        (lambda: ListedTrigger((4, 8), stop_at=4), r"last budget of \[4, 8\], got 4"),
        (lambda: ListedTrigger((), stop_at=4), "last budget"),
        (lambda: stride(2, 8, first=-1), "got 2, -1 and 8"),
        (lambda: stride(2, 8, stop_at=-1), "got 2, 2 and -1"),
    ],
)
def test_impossible_triggers_are_refused(make: object, said: str) -> None:
    assert callable(make)
    with pytest.raises(PolicyError, match=said):
        make()
