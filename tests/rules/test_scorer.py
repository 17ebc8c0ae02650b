"""Views of a table against plain Python, question by question; markers against their trigger."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stopadvisor.ground.errors import ProbeError
from stopadvisor.policy.consistency import check_trigger
from stopadvisor.policy.terms import trigger_of
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.table import NO_PROBE, grid_positions, probed_markers
from stopadvisor.probes.trigger import ListedTrigger, MarkerTrigger, Trigger, stride
from stopadvisor.rules.scorer import Scorer, grid_view, view_at
from tests.policy_content import example_terms, trigger_content
from tests.populations import FREE_FORM, make_table
from tests.probes.test_trigger import walked

MARKER = 7


def padded(rows: list[list[int]]) -> np.ndarray:
    width = max([1, *map(len, rows)])
    return np.array([row + [NO_PROBE] * (width - len(row)) for row in rows], dtype=np.int64)


def table_of(
    probes: list[list[int]], trace: list[int], markers: list[list[int]] | None = None
) -> OpenQuestions:
    """Questions probed at positions of their own; every probe has numbers of its own."""
    positions = padded(probes)
    n, m = positions.shape
    rng = np.random.default_rng(0)
    number = np.arange(n * m, dtype=np.float64).reshape(n, m)
    table = make_table(
        np.arange(m),
        correct=rng.random((n, m)) < 0.5,
        codes=rng.integers(0, 3, (n, m)),
        logprob=-number,
        entropy=number,
        markers=number,
        probe_tokens=number + 1,
        trace=np.array(trace),
        prompt=np.full(n, 10),
        natural_correct=rng.integers(0, 2, n).astype(bool),
        natural_tokens=np.full(n, 5.0),
    )
    found = None if markers is None else padded(markers)
    return replace(table, positions=positions, marker_positions=found)


def check_view(table: OpenQuestions, view: OpenQuestions, wanted: list[list[int]]) -> None:
    """Say that the view holds exactly the probes of `table` at these positions."""
    assert view.ids == table.ids
    for i, positions in enumerate(wanted):
        live = np.flatnonzero(view.live[i]).tolist()
        assert live == list(range(len(positions)))  # packed to the left
        for column, position in enumerate(positions):
            old = table.positions[i].tolist().index(position)
            assert view.positions[i, column] == position
            for name in ("mean_logprob", "answer_codes", "probe_tokens", "markers", "correct"):
                assert getattr(view, name)[i, column] == getattr(table, name)[i, old]


# --- On a grid ------------------------------------------------------------------------------------


@given(st.data())
def test_a_grid_view_holds_each_questions_probes_there(data: st.DataObject) -> None:
    wanted = sorted(data.draw(st.sets(st.integers(0, 30), min_size=1, max_size=5)))
    trace = data.draw(st.lists(st.integers(0, 35), min_size=1, max_size=5))
    more = [data.draw(st.sets(st.integers(0, 40), max_size=6)) for _ in trace]
    # Whoever thinks on was probed there; the others may have been, or not.
    probes = [
        sorted({p for p in wanted if p < t} | own) for t, own in zip(trace, more, strict=True)
    ]
    table = table_of(probes, trace)
    view = view_at(ListedTrigger(tuple(wanted)), table)
    assert view.is_grid
    assert view.budgets.tolist() == wanted
    check_view(table, view, [[p for p in wanted if p < t] for t in trace])
    assert np.array_equal(view.full_correct, table.full_correct)
    assert np.array_equal(view.trace_tokens, table.trace_tokens)


def test_of_a_grid_it_is_some_of_the_columns() -> None:
    table = FREE_FORM.draw(20, np.random.default_rng(0))
    budgets = table.budgets.tolist()
    whole = view_at(ListedTrigger(tuple(budgets)), table)
    assert whole is table
    part = view_at(ListedTrigger((budgets[1], budgets[4])), table)
    assert np.array_equal(part.mean_logprob, table.mean_logprob[:, [1, 4]])
    assert np.array_equal(part.correct, table.correct[:, [1, 4]])


def test_a_missing_probe_names_its_question() -> None:
    table = table_of([[0, 10, 20], [0, 20]], [30, 30])
    with pytest.raises(ProbeError, match="question '1' was not probed at 10 thinking tokens"):
        view_at(ListedTrigger((0, 10)), table)
    view_at(ListedTrigger((0, 20)), table)
    short = replace(table, trace_tokens=np.array([30, 10]))  # over by then: no probe is missed
    assert view_at(ListedTrigger((0, 10)), short).live.tolist() == [[True, True], [True, False]]


@given(st.data())
def test_common_positions_are_those_that_all_who_think_on_have(data: st.DataObject) -> None:
    trace = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=4))
    probes = [sorted(data.draw(st.sets(st.integers(0, 12), max_size=9))) for _ in trace]
    table = table_of(probes, trace)
    expected = [
        p
        for p in range(13)
        if any(t > p and p in own for t, own in zip(trace, probes, strict=True))
        and all(t <= p or p in own for t, own in zip(trace, probes, strict=True))
    ]
    if table.is_grid:
        expected = probes[0]
    assert list(grid_positions(table)) == expected
    if expected:
        assert grid_view(table).budgets.tolist() == expected


# --- At markers -----------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_markers_are_probed_where_the_trigger_probes(data: st.DataObject) -> None:
    schedule = MarkerTrigger(
        (),
        data.draw(st.integers(1, 6)),
        data.draw(st.integers(1, 4)),
        data.draw(st.none() | st.integers(1, 5)),
        data.draw(st.none() | st.integers(0, 30)),
    )
    token = st.sampled_from([MARKER, 1, 2])
    traces = data.draw(st.lists(st.lists(token, max_size=30), min_size=1, max_size=4))
    markers = [[p for p, token in enumerate(ids) if token == MARKER] for ids in traces]
    last = [] if schedule.stop_at is None else [schedule.stop_at]
    own = [data.draw(st.sets(st.integers(0, 30), max_size=3)) for _ in traces]
    probes = [sorted({*found, *last, *more}) for found, more in zip(markers, own, strict=True)]
    table = table_of(probes, [len(ids) for ids in traces], markers)
    view = view_at(schedule, table)
    assert view.n_checkpoints <= schedule.most_probes
    online = replace(schedule, markers=((MARKER,),))
    check_view(table, view, [walked(online, ids, []) for ids in traces])


def test_only_markers_that_count_have_to_be_probed() -> None:
    table = table_of([[5, 20], [8]], [60, 60], [[5, 9, 20, 40], [8, 50]])
    assert view_at(MarkerTrigger((), 10, 9, max_markers=1), table).live.any() == False  # noqa: E712
    found = view_at(MarkerTrigger((), 5, 9, max_markers=1), table)
    assert found.positions.tolist() == [[5], [8]]
    with pytest.raises(ProbeError, match="question '0' was not probed at 40 thinking tokens"):
        view_at(MarkerTrigger((), 5, 9), table)
    with pytest.raises(ProbeError, match="these traces were not searched for any"):
        view_at(MarkerTrigger((), 5, 9), replace(table, marker_positions=None))


@given(st.data())
def test_how_many_markers_every_trace_was_probed_at(data: st.DataObject) -> None:
    position = st.integers(0, 15)
    n = data.draw(st.integers(1, 4))
    markers = [sorted(data.draw(st.sets(position, max_size=5))) for _ in range(n)]
    probes = [sorted(data.draw(st.sets(position, max_size=9))) for _ in range(n)]
    table = table_of(probes, [20] * n, markers)
    first_missing = [
        next((k for k, p in enumerate(found) if p not in own), None)
        for found, own in zip(markers, probes, strict=True)
    ]
    missing = [k for k in first_missing if k is not None]
    assert probed_markers(table) == (min(missing) if missing else None)
    with pytest.raises(ProbeError, match="not searched for markers"):
        probed_markers(replace(table, marker_positions=None))


# --- The last resort ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule",
    [ListedTrigger((0, 20), 20), MarkerTrigger((), 1, 2, None, 20)],
    ids=["grid", "markers"],
)
def test_whoever_still_thinks_at_the_last_position_is_stopped(schedule: Trigger) -> None:
    table = table_of([[0, 20], [0, 4, 20], [0, 4]], [30, 25, 20], [[], [4], [4]])
    scorer = Scorer("confidence", schedule, None)
    view = scorer.view(table)
    scores, decides = scorer.scores(view), scorer.decides(view)
    for i in range(3):
        for column in np.flatnonzero(view.live[i]).tolist():
            is_last = view.positions[i, column] == 20
            assert (scores[i, column] == sys.float_info.max) == is_last
            assert decides[i, column] == (not is_last)
    stops = scorer.curve(view, np.array([1e300])).stops(0)  # a threshold that no score reaches
    at = [view.positions[i, s] if s < view.n_checkpoints else None for i, s in enumerate(stops)]
    assert at == [20, 20, None]  # the third has thought its 20 tokens, and ends by itself


# --- In a policy ----------------------------------------------------------------------------------


@st.composite
def schedules(draw: st.DrawFn) -> Trigger:
    position = st.integers(0, 40)
    if draw(st.booleans()):
        positions = sorted(draw(st.sets(position, min_size=1, max_size=5)))
        if draw(st.booleans()):
            first, every = draw(st.integers(0, 9)), draw(st.integers(1, 9))
            positions = list(range(first, 41, every))
            if draw(st.booleans()):  # a stride, and one position more
                positions = [*positions[: draw(st.integers(2, 4))], 50]
        stop_at = draw(st.sampled_from([None, positions[-1]]))
        return ListedTrigger(tuple(positions), stop_at).as_stride()
    count = st.integers(1, 9)
    return MarkerTrigger(
        ((MARKER,), (1, 2)),
        *(draw(count), draw(count), draw(st.none() | count), draw(st.none() | position)),
    )


@settings(max_examples=60)
@given(schedules())
def test_a_policy_says_where_its_rule_probes(schedule: Trigger) -> None:
    terms = example_terms(**trigger_content(schedule), max_think=None)
    check_trigger(terms)
    assert trigger_of(terms) == schedule


def test_even_positions_are_a_stride() -> None:
    assert ListedTrigger((1, 3, 5), 5).as_stride() == stride(2, 5, 1, stop_at=5)
    assert ListedTrigger((100, 200, 300)).as_stride() == stride(100, 350)
    uneven, from_the_start = ListedTrigger((1, 3, 6)), ListedTrigger((0, 100, 200))
    # A gap before the last resort is no stride: nobody is probed in it.
    for listed in (uneven, from_the_start, ListedTrigger((1, 3, 40), 40)):
        assert listed.as_stride() == listed


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (ListedTrigger((0, 128)), "at 0, 128 thinking tokens"),
        (ListedTrigger((0, 128, 512), 512), "at 0, 128 thinking tokens, stopping all at 512"),
        (ListedTrigger((64, 128, 192, 256)), "every 64 thinking tokens from 64 to 256"),
        (
            ListedTrigger((64, 128, 192, 256, 300), 300),
            "every 64 thinking tokens from 64, stopping all at 300",
        ),
        (ListedTrigger((300,), 300), "at 300"),
        (MarkerTrigger((), 64, 9), "at markers at least 64 thinking tokens apart"),
        (
            MarkerTrigger((), 64, 9, None, 300),
            "at markers at least 64 thinking tokens apart, stopping all at 300",
        ),
    ],
)
def test_where_it_probes_in_words(schedule: Trigger, words: str) -> None:
    assert schedule.describe() == words
