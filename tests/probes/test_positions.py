"""Where a plan probes a trace: the positions that serving finds as its tokens come in."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopadvisor.ground.errors import ProbeError
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
GRID = ProbePlan((0, 8, 16), cue="Answer:", max_think=40)
MARKED = ProbePlan((), cue="Answer:", max_think=40, schedule="marker", markers=MARKERS)
THINKING = st.lists(st.integers(0, 4), max_size=60)


def online(trigger: Trigger, ids: list[int]) -> list[int]:
    """The positions that serving would probe, one token after the other."""
    positions, found = trigger.start(), []
    for token in ids:
        positions.feed([token])
        while (at := positions.next()) is not None:
            found.append(at)
            positions.advance()
    positions.finish()
    while (at := positions.next()) is not None:
        found.append(at)
        positions.advance()
    return found


@given(ids=THINKING, gap=st.integers(1, 9), most=st.integers(1, 6))
def test_markers_are_probed_where_serving_probes(ids: list[int], gap: int, most: int) -> None:
    plan = ProbePlan(
        (), "", schedule="marker", markers=MARKERS, min_gap=gap, max_markers=most, max_think=60
    )
    found = trace_positions(plan, ids)
    assert list(found.probed) == online(MarkerTrigger(MARKERS, gap, 60, max_markers=most), ids)
    assert found.markers is not None
    assert [at for at in found.markers if at] == online(MarkerTrigger(MARKERS, 1, 60), ids)


@given(ids=THINKING, every=st.integers(1, 20))
def test_a_stride_is_probed_where_serving_probes(ids: list[int], every: int) -> None:
    plan = ProbePlan((), "", schedule="stride", max_think=60).with_stride(every)
    found = trace_positions(plan, ids)
    assert list(found.probed) == online(stride(every, 60), ids)
    assert found.markers is None


@given(ids=THINKING)
def test_a_grid_stands_beside_markers_and_shares_its_probes(ids: list[int]) -> None:
    plan = ProbePlan((0, 3, 9, 27), "", schedule="marker", markers=MARKERS)
    markers = online(MarkerTrigger(MARKERS, 1, 60), ids)
    both = {*online(ListedTrigger(plan.budgets), ids), *markers}
    assert trace_positions(plan, ids).probed == tuple(sorted(both))


GAPS = st.integers(1, 9)
MAYBE = st.none() | st.integers(1, 12)
TRIGGERS = (
    st.builds(
        lambda budgets: ListedTrigger(tuple(sorted(budgets))),
        st.sets(st.integers(0, 60), min_size=1),
    )
    | st.builds(stride, GAPS, st.integers(1, 60), MAYBE, st.none() | st.integers(0, 60))
    | st.builds(
        MarkerTrigger,
        *(st.just(MARKERS), GAPS, st.integers(1, 20), MAYBE, st.none() | st.integers(0, 60)),
    )
)


@given(ids=THINKING, trigger=TRIGGERS)
def test_a_policys_trigger_is_probed_wherever_it_looks(ids: list[int], trigger: Trigger) -> None:
    plan = at_trigger(replace(GRID, max_think=60), trigger)
    probed = trace_positions(plan, ids).probed
    found = online(trigger, ids)
    assert set(found) <= set(probed)
    if trigger.kind != "marker" or trigger.stop_at is None:
        assert found == [at for at in probed if at < len(ids)]
    assert plan.schedule == trigger.kind
    assert ProbePlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_a_marker_at_the_very_beginning_counts_and_is_not_probed() -> None:
    plan = replace(MARKED, max_markers=2)
    found = trace_positions(plan, [1, 0, 1, 1])
    assert (found.markers, found.probed) == ((0, 2, 3), (2,))


def test_a_marker_that_is_cut_by_the_end_is_none() -> None:
    assert marker_positions(MARKERS, [0, 2, 3, 0, 2]) == (1,)
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


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(GRID, id="grid"),
        pytest.param(
            ProbePlan((), "", schedule="stride", max_think=50).with_stride(16), id="stride"
        ),
        pytest.param(MARKED.with_stride(8), id="marker beside a stride"),
        pytest.param(
            ProbePlan((0, 9), "", schedule="marker", markers=MARKERS, min_gap=4, max_markers=3),
            id="marker beside a grid",
        ),
    ],
)
def test_a_plan_survives_its_json(plan: ProbePlan) -> None:
    assert ProbePlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_a_stride_ends_at_the_cap() -> None:
    plan = ProbePlan((), "", schedule="stride", max_think=50).with_stride(16)
    assert (plan.budgets, plan.every) == ((16, 32, 48), 16)
    assert plan.with_stride(25).budgets == (25, 50)
    assert plan.at_budgets(0, 5) == ProbePlan((0, 5), "", max_think=50)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "often"}, "schedule must be one of auto, grid, stride, marker, got 'often'"),
        ({"every": 0}, "every must be >= 1, got 0"),
        ({"min_gap": 0}, "min_gap must be >= 1, got 0"),
        ({"max_probes": 0}, "max_probes must be >= 1, got 0"),
        ({"markers": ((1,), ())}, "markers must have at least one token each"),
    ],
)
def test_what_is_no_plan_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ProbeError, match=message):
        ProbePlan((), "", **changes)  # type: ignore[arg-type]
