"""Candidate schedules and rules: strides, late starts, markers, and where thinking ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stopadvisor.assessment.candidates import (
    candidates,
    grid_schedules,
    last_resort,
    marker_schedules,
)
from stopadvisor.assessment.sequences import FitData
from stopadvisor.assessment.settings import Settings
from stopadvisor.ground.arrays import IntArray
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.table import NO_PROBE
from stopadvisor.probes.trigger import ListedTrigger, MarkerTrigger
from stopadvisor.rules.families import FIXED_BUDGET, STOP_SCALARS
from stopadvisor.rules.scorer import view_at
from tests.populations import POPULATIONS, KnownPopulation, regraded

FREE_FORM = POPULATIONS[3]
BUDGETS = FREE_FORM.budgets


def draw(n: int, seed: int) -> OpenQuestions:
    return FREE_FORM.draw(n, np.random.default_rng(seed))


def on_budgets(budgets: tuple[int, ...], n: int = 30, seed: int = 0) -> OpenQuestions:
    law = KnownPopulation("beneficial", (0, 1, 0, 0, 0), budgets=budgets)
    return law.draw(n, np.random.default_rng(seed))


def data(table: OpenQuestions) -> FitData:
    return FitData.build(table.as_fit(), Settings())


def with_markers(
    table: OpenQuestions, every: int = 70, counted: int | None = None
) -> OpenQuestions:
    """The same questions with a marker at every N tokens, the first `counted` of them probed."""
    n = table.n_questions
    most = max(1, int(table.trace_tokens.max() - 1) // every)
    where = np.arange(1, most + 1) * every
    markers = np.where(where < table.trace_tokens[:, None], where, NO_PROBE)
    probed = markers[:, :counted]
    budgets = np.broadcast_to(table.budgets, (n, table.n_checkpoints))
    rows = [
        sorted({*a, *b} - {NO_PROBE})
        for a, b in zip(probed.tolist(), budgets.tolist(), strict=True)
    ]
    width = max(map(len, rows))
    columns = np.array(
        [
            [*(min(np.searchsorted(BUDGETS, p), 9) for p in row), *[-1] * (width - len(row))]
            for row in rows
        ]
    )
    positions = np.array([[*row, *[NO_PROBE] * (width - len(row))] for row in rows])
    ragged = table.at(columns, range(width))
    return replace(ragged, positions=positions, marker_positions=markers)


# --- Where thinking ends for everybody ------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_no_fit_question_is_lost_from_the_last_resort_on(seed: int) -> None:
    table = draw(40, seed)
    found = last_resort(data(table))
    lost = [
        p
        for j, p in enumerate(BUDGETS)
        if any(
            table.trace_tokens[i] > p and table.full_correct[i] and not table.correct[i, j]
            for i in range(40)
        )
    ]
    earliest = next((p for p in BUDGETS if not lost or p > lost[-1]), None)
    allowed = [p for p in BUDGETS if earliest is not None and p >= max(1.25 * earliest, 1)]
    assert found == (allowed[0] if allowed else None)


def test_the_last_checkpoint_is_an_end_already() -> None:
    assert last_resort(data(draw(40, 1))) is not None
    assert last_resort(data(draw(40, 1).with_reference("last-checkpoint"))) is None


# --- Schedules ------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(1, 14), st.booleans(), st.booleans(), st.booleans())
def test_grid_schedules_are_strides_over_shared_positions(
    m: int, natural: bool, from_zero: bool, stops: bool
) -> None:
    first = 0 if from_zero else 100
    budgets = tuple(range(first, first + 100 * m, 100))
    table = on_budgets(budgets)
    if not natural:
        table = table.with_reference("last-checkpoint")
    stop_at = budgets[-1] if stops and natural and budgets[-1] > 0 else None
    found = grid_schedules(data(table), stop_at)
    assert len(set(found)) == len(found)
    longest = table.trace_tokens.max() if stop_at is None else stop_at
    for schedule in found:
        positions = schedule.positions
        assert schedule.stop_at == stop_at
        assert set(positions) <= set(budgets)
        assert list(positions) == sorted(set(positions))
        if stop_at is not None or not natural:
            assert positions[-1] == budgets[-1]
            positions = positions[:-1]
        if natural:
            assert all(p < longest for p in positions)
        steps = set(np.diff([p for p in positions if p > 0]).tolist())
        assert steps <= {100, 200, 400}
        assert len(steps) <= 1
        view_at(schedule, table)  # every probe was made


def test_a_late_start_leaves_out_what_nearly_all_traces_pass() -> None:
    table = on_budgets(tuple(range(100, 1500, 100)))
    table = replace(table, trace_tokens=np.where(np.arange(30) == 7, 40, 750))
    found = {s.positions for s in grid_schedules(data(table))}
    assert (100, 200, 300, 400, 500, 600, 700) in found
    assert (200, 400, 600) in found
    assert (400,) in found
    early = np.where(np.arange(30) % 10 == 7, 40, 750)  # a tenth ends at once
    starts = {s.positions[0] for s in grid_schedules(data(replace(table, trace_tokens=early)))}
    assert starts == {100, 200, 300, 400}  # 300: every fourth, counted from the last
    late = replace(table, trace_tokens=np.full(30, 750))
    assert (700,) in {s.positions for s in grid_schedules(data(late))}


def test_a_short_grid_is_tried_from_both_ends_with_and_without_its_beginning() -> None:
    table = on_budgets(tuple(range(0, 800, 100)))
    found = {
        s.positions for s in grid_schedules(data(replace(table, trace_tokens=np.full(30, 750))))
    }
    every = tuple(range(100, 800, 100))
    assert found == {
        (0, *every), every, (700,),
        (0, 200, 400, 600), (200, 400, 600), (100, 300, 500, 700),
        (0, 400), (400,), (300, 700),
    }  # fmt: skip


def test_many_positions_are_thinned() -> None:
    table = on_budgets(tuple(range(10, 3000, 10)))
    longest = replace(table, trace_tokens=np.full(30, 5000))
    found = [schedule.positions for schedule in grid_schedules(data(longest))]
    steps = {at[1] - at[0] for at in found if len(at) > 1}
    assert steps == {40, 80, 160}  # 299 positions: every fourth of them leaves 74
    assert max(map(len, found)) <= 128


def test_markers_are_used_as_far_as_everybody_was_probed_there() -> None:
    table = draw(40, 2)
    assert marker_schedules(data(table)) == ()  # nobody looked
    every = with_markers(table)
    found = marker_schedules(data(every), 1024)
    assert [s.min_gap for s in found] == [64, 128, 256]
    assert {s.max_markers for s in found} == {None}
    assert {s.stop_at for s in found} == {1024}
    assert found[0].max_probes == every.marker_positions.shape[1]  # type: ignore[union-attr]
    few = marker_schedules(data(with_markers(table, counted=3)))
    assert {(s.max_markers, s.max_probes) for s in few} == {(3, 3)}
    assert marker_schedules(data(with_markers(table, counted=0))) == ()
    for schedule in (*found, *few):
        view_at(schedule, every)


def test_a_last_resort_that_was_not_probed_is_none_at_markers() -> None:
    table = with_markers(draw(40, 2))
    assert marker_schedules(data(table), 1000) == ()  # no budget, no multiple of 70


def test_no_rule_probes_where_a_question_of_another_part_was_not() -> None:
    table, later = with_markers(draw(40, 2)), with_markers(draw(40, 3))
    longest = int(later.trace_tokens.argmax())
    column = int(np.flatnonzero(later.positions[longest] == BUDGETS[2])[0])
    columns = np.tile(np.arange(later.n_checkpoints), (40, 1))
    columns[longest, column:-1] = columns[longest, column + 1 :]
    columns[longest, -1] = -1
    missing = later.at(np.where(later.positions == NO_PROBE, -1, columns))
    alone = data(table)
    fit = FitData.build(table.as_fit(), Settings(), missing.observations)
    assert set(alone.positions) - set(fit.positions) == {BUDGETS[2]}
    for schedule in grid_schedules(fit, last_resort(fit)):
        view_at(schedule, missing)
    assert all(map(fit.was_probed, marker_schedules(fit)))
    marked = with_markers(draw(40, 3), counted=3)
    few = FitData.build(table.as_fit(), Settings(), marked.observations)
    assert {s.max_markers for s in marker_schedules(few)} == {3}


# --- Candidates -----------------------------------------------------------------------------------


def by_family(table: OpenQuestions, families: tuple[str, ...]) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    for sequence in candidates(data(table), families):
        found.setdefault(sequence.scorer.family, []).append(sequence.scorer.schedule)
    return found


def test_every_family_is_tried_where_it_suits() -> None:
    table = draw(80, 3)
    stop_at = last_resort(data(table))
    on_grid = grid_schedules(data(table), stop_at)
    families = ("learned", "learned-keeps", *STOP_SCALARS, FIXED_BUDGET)
    found = by_family(table, families)
    assert set(found) == set(families) - {"deer"}
    assert found[FIXED_BUDGET] == [ListedTrigger(BUDGETS)]
    assert found["confidence"] == list(on_grid)
    assert found["learned"] == [s for s in on_grid for _ in range(2)]  # few features, and all
    late = [
        s
        for s in on_grid
        if any(
            set(s.positions) < set(o.positions) and o.positions[-s.most_probes :] == s.positions
            for o in on_grid
        )
    ]
    assert late
    for family in ("run-stability", "confidence-leap", "agreement"):
        assert found[family] == [s for s in on_grid if s not in late]


def test_families_that_are_not_asked_for_are_not_tried() -> None:
    found = by_family(draw(40, 3), ("entropy",))
    assert set(found) == {"entropy"}


def test_at_markers_confidence_agreement_and_learned_rules_are_tried() -> None:
    table = with_markers(draw(80, 4))
    families = ("learned", *STOP_SCALARS, FIXED_BUDGET)
    found = by_family(table, families)
    at_markers = {
        family: sum(isinstance(s, MarkerTrigger) for s in schedules)
        for family, schedules in found.items()
    }
    assert at_markers["deer"] == len(found["deer"]) == 3
    assert at_markers["agreement-scaled"] == 3
    assert at_markers["learned"] == 6
    assert {family for family, count in at_markers.items() if count} == {
        *("deer", "agreement-scaled", "learned")
    }


def test_without_a_common_position_there_are_markers_alone() -> None:
    table = with_markers(draw(60, 6))
    assert table.marker_positions is not None
    shift = np.arange(60)[:, None] + 1  # more than the longest trace's neighbours have in common

    def moved(positions: IntArray) -> IntArray:
        return np.where(positions == NO_PROBE, NO_PROBE, positions + shift)

    own = replace(
        table,
        trace_tokens=np.full(60, 3000),
        positions=moved(table.positions),
        marker_positions=moved(table.marker_positions),
    )
    found = by_family(own, ("deer", "confidence", FIXED_BUDGET))
    assert set(found) == {"deer"}
    assert all(isinstance(schedule, MarkerTrigger) for schedule in found["deer"])


def test_a_question_that_is_always_right_needs_no_thinking() -> None:
    table = draw(40, 7)
    right = regraded(table, correct=np.ones_like(table.correct))
    assert last_resort(data(right)) == BUDGETS[1]  # from the first on nothing is lost; 0 is no end
