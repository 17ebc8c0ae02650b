"""Positions of triggers and of plans, against a plain search of the whole trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopadvisor.ground.errors import PolicyError, ProbeError
from stopadvisor.probes.asking import ProbePlan
from stopadvisor.probes.trigger import (
    ListedTrigger,
    MarkerTrigger,
    Trigger,
    at_trigger,
    marker_positions,
    probed_positions,
    stride,
    trace_positions,
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


MAYBE = st.none() | st.integers(0, 60)
TRIGGERS = (
    st.sets(st.integers(0, 50), max_size=5).map(lambda b: ListedTrigger(tuple(sorted(b))))
    | st.builds(stride, st.integers(1, 9), st.integers(1, 60), MAYBE, MAYBE)
    | st.builds(
        MarkerTrigger,
        *(st.just(MARKERS), st.integers(1, 5), st.integers(1, 6)),
        *(st.none() | st.integers(1, 6), MAYBE),
    )
    | st.integers(0, 50).map(lambda stop_at: ListedTrigger((stop_at,), stop_at))
)
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


@given(
    ids=THINKING,
    pieces=PIECES,
    every=st.integers(1, 20),
    cap=st.integers(1, 70),
    first=st.none() | st.integers(0, 30),
    stop_at=st.none() | st.integers(0, 70),
)
def test_a_stride_ends_at_its_cap_or_where_every_trace_stops(
    ids: list[int], pieces: list[int], every: int, cap: int, first: int | None, stop_at: int | None
) -> None:
    trigger = stride(every, cap, first, stop_at)
    begin = every if first is None else first
    end = cap + 1 if stop_at is None else stop_at
    listed = [at for at in range(begin, end) if (at - begin) % every == 0]
    listed += [] if stop_at is None else [stop_at]
    assert walked(trigger, ids, pieces) == [at for at in listed if at < len(ids)]
    assert trigger.positions == tuple(listed)


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
    positions = MarkerTrigger(((2, 2, 4),), 1, 9).start()
    positions.feed([0, 2, 3, 2, 2, 4])
    assert positions.next() == 3, "what goes on otherwise holds nothing back"


def test_a_marker_is_found_by_its_token_ids_alone() -> None:
    with pytest.raises(PolicyError, match="knows no marker's token ids"):
        MarkerTrigger((), 1, 1).start()
    with pytest.raises(PolicyError, match="needs the tokens' ids"):
        MarkerTrigger(MARKERS, 1, 1).start().feed(3)


# --- Plans ----------------------------------------------------------------------------------------

GRID = ProbePlan((0, 8, 16), cue="Answer:", max_think=40)
MARKED = ProbePlan((), cue="Answer:", max_think=40, schedule="marker", markers=MARKERS)


def walked_by_token(trigger: Trigger, ids: list[int]) -> list[int]:
    """The positions that serving would probe, token by token."""
    return walked(trigger, ids, [1] * len(ids))


@given(ids=THINKING, gap=st.integers(1, 9), most=st.integers(1, 6))
def test_markers_are_probed_where_serving_probes(ids: list[int], gap: int, most: int) -> None:
    plan = ProbePlan(
        (), "", schedule="marker", markers=MARKERS, min_gap=gap, max_markers=most, max_think=60
    )
    found = trace_positions(plan, ids)
    assert list(found.probed) == walked_by_token(
        MarkerTrigger(MARKERS, gap, 60, max_markers=most), ids
    )
    assert found.markers is not None
    assert [at for at in found.markers if at] == walked_by_token(MarkerTrigger(MARKERS, 1, 60), ids)


@given(ids=THINKING)
def test_a_grid_stands_beside_markers_and_shares_its_probes(ids: list[int]) -> None:
    plan = ProbePlan((0, 3, 9, 27), "", schedule="marker", markers=MARKERS)
    markers = walked_by_token(MarkerTrigger(MARKERS, 1, 60), ids)
    both = {*walked_by_token(ListedTrigger(plan.budgets), ids), *markers}
    assert trace_positions(plan, ids).probed == tuple(sorted(both))


@given(ids=THINKING, trigger=TRIGGERS)
def test_a_policys_trigger_is_probed_wherever_it_looks(ids: list[int], trigger: Trigger) -> None:
    plan = at_trigger(replace(GRID, max_think=60), trigger)
    probed = trace_positions(plan, ids).probed
    found = walked_by_token(trigger, ids)
    assert set(found) <= set(probed)
    if trigger.kind != "marker" or trigger.stop_at is None:
        assert found == [at for at in probed if at < len(ids)]
    assert plan.schedule == trigger.kind
    assert ProbePlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_a_marker_at_the_very_beginning_counts_and_is_not_probed() -> None:
    plan = replace(MARKED, max_markers=2)
    found = trace_positions(plan, [1, 0, 1, 1])
    assert (found.markers, found.probed) == ((0, 2, 3), (2,))


def test_markers_of_a_whole_trace_are_found() -> None:
    assert marker_positions(MARKERS, [0, 2, 3, 0, 2]) == (1,)  # the end cuts the last one off
    assert marker_positions(MARKERS, []) == ()
    assert marker_positions((), [1, 1]) == ()


def test_all_markers_are_recorded_beyond_those_that_are_probed() -> None:
    plan = ProbePlan((4,), "", schedule="marker", markers=((1,),), min_gap=2, max_markers=4)
    found = trace_positions(plan, [0, 1, 1, 1, 0, 1, 1, 1])
    assert found.markers == (1, 2, 3, 5, 6, 7)
    assert found.probed == (2, 4, 5)  # 2 and 5 are markers, 4 the budget


def test_a_grid_keeps_budgets_beyond_the_end() -> None:
    assert probed_positions(GRID, 9, None) == (0, 8, 16)


def test_a_plan_without_markers_is_written_as_before() -> None:
    assert list(GRID.to_dict()) == [
        *("budgets", "cue", "cap", "max_think", "answer_cap", "greedy", "temperature", "entropy"),
        "seed",
    ]


def test_a_stride_ends_at_the_cap() -> None:
    plan = ProbePlan((), "", schedule="stride", max_think=50).with_stride(16)
    assert (plan.budgets, plan.every) == ((16, 32, 48), 16)
    assert plan.with_stride(25).budgets == (25, 50)
    assert plan.at_budgets(0, 5) == ProbePlan((0, 5), "", max_think=50)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({"budgets": wrong}, "budgets must be >= 0") for wrong in ((-1, 5), (5, 5), (8, 5))),
        *(({name: 0}, f"{name} must be >= 1") for name in ("cap", "max_think", "answer_cap")),
        *(({"temperature": wrong}, "temperature must be > 0") for wrong in (0.0, -0.5)),
        ({"schedule": "often"}, "schedule must be one of auto, grid, stride, marker, got 'often'"),
        ({"every": 0}, "every must be >= 1, got 0"),
        ({"min_gap": 0}, "min_gap must be >= 1, got 0"),
        ({"max_probes": 0}, "max_probes must be >= 1, got 0"),
        ({"markers": ((1,), ())}, "markers must have at least one token each"),
    ],
)
def test_what_is_no_plan_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ProbeError, match=message):
        ProbePlan(**{"budgets": (), "cue": "", **changes})  # type: ignore[arg-type]
