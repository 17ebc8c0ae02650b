"""Candidate rules on fit questions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stopadvisor.assessment import sequences
from stopadvisor.assessment.sequences import (
    FitData,
    ThresholdSequence,
    build_sequence,
    candidate_schedules,
)
from stopadvisor.errors import CalibrationError
from stopadvisor.probes.grouping import group_numbers
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.simulation import Population
from stopadvisor.rules.boosting import BoostedModel
from stopadvisor.rules.costs import PAPER_WEIGHTS, full_counts, stopped_counts
from stopadvisor.rules.families import LEARNED_FAMILIES, SCALAR_FAMILIES
from stopadvisor.rules.scorer import Scorer
from stopadvisor.stats.bounds import StopCurve
from tests.populations import POPULATIONS, regraded
from tests.replay import stops

FREE_FORM = POPULATIONS[3]
FAMILIES = (*LEARNED_FAMILIES, *SCALAR_FAMILIES)
EVERY = tuple(range(10))


def draw(n: int, seed: int) -> OpenQuestions:
    return FREE_FORM.draw(n, np.random.default_rng(seed))


def data(table: OpenQuestions, most_blocks: int = 1000) -> FitData:
    return FitData.build(
        table.as_fit(),
        serving="kv-fork",
        weights=PAPER_WEIGHTS,
        cache_block=16,
        most_blocks=most_blocks,
    )


def sequence(fit: FitData, family: str, schedule: tuple[int, ...] = EVERY) -> ThresholdSequence:
    found = build_sequence(fit, family, schedule)
    assert found is not None
    return found


# --- Schedules ------------------------------------------------------------------------------------


@given(st.integers(1, 14), st.booleans())
def test_schedules_are_increasing_sub_grids_from_all_down_to_two(m: int, natural: bool) -> None:
    law = Population({"beneficial": 1.0}, budgets=tuple(range(0, 1400, 100)))
    small = law.draw(3, np.random.default_rng(0)).select(range(m))
    if not natural:
        small = small.with_reference("last-checkpoint")
    found = candidate_schedules(small)
    assert found[0] == tuple(range(m))
    assert len(set(found)) == len(found)
    for schedule in found:
        assert list(schedule) == sorted(set(schedule))
        assert 0 <= schedule[0] <= schedule[-1] < m
        assert len(schedule) >= min(2, m)
        if not natural:
            assert schedule[-1] == m - 1
    if m >= 4:
        assert min(map(len, found)) == 2


# --- Fit data -------------------------------------------------------------------------------------


def test_groups_share_fold_and_block() -> None:
    table = draw(40, 1)
    table = replace(table, groups=tuple(f"g{i // 3}" for i in range(40)))
    assert group_numbers(table).tolist() == [i // 3 for i in range(40)]
    fit = data(table)
    for values in (fit.folds, fit.blocks):
        by_group: dict[str, set[int]] = {}
        for group, value in zip(table.groups, values.tolist(), strict=True):
            by_group.setdefault(group, set()).add(value)
        assert all(len(v) == 1 for v in by_group.values())
    assert fit.n_blocks == 14
    assert data(table, most_blocks=5).n_blocks == 5


def test_fewer_groups_than_folds_are_refused() -> None:
    with pytest.raises(CalibrationError, match="at least 5 different fit questions, got 4"):
        data(draw(4, 0))


# --- Sequences ------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("schedule", [EVERY, (1, 4, 9)])
def test_losses_and_costs_are_sums_over_out_of_fold_stops(
    family: str, schedule: tuple[int, ...]
) -> None:
    table = draw(220, 2)
    fit = data(table)
    found = sequence(fit, family, schedule)
    assert (np.diff(found.thresholds) < 0).all()
    costs = stopped_counts(table, schedule, "kv-fork").weighed(PAPER_WEIGHTS)
    for position in (0, found.thresholds.size // 2, found.thresholds.size - 1):
        at = found.curve.stops(position)
        lost = cost = 0.0
        for i, stop in enumerate(at.tolist()):
            cost += costs[i, stop]
            if stop < len(schedule):
                assert not table.ended[i, schedule[stop]]
                lost += table.full_correct[i] and not table.correct[i, schedule[stop]]
        assert found.losses[position] == lost
        assert found.costs[position] == pytest.approx(cost)
    assert np.allclose(found.block_losses.sum(axis=0), found.losses)
    assert np.allclose(found.block_costs.sum(axis=0), found.costs)
    assert np.array_equal(fit.full_cost, full_counts(table).weighed(PAPER_WEIGHTS))


@pytest.mark.parametrize("family", LEARNED_FAMILIES)
def test_learned_scores_on_fit_are_out_of_fold(family: str) -> None:
    # Flipping the labels of one fold moves nothing where that fold alone is scored.
    table = draw(220, 3)
    fit = data(table)
    seen: list[np.ndarray[tuple[int, int], np.dtype[np.float64]]] = []
    build = StopCurve.build.__func__  # type: ignore[attr-defined]

    def spy(cls: type[StopCurve], scores, live, thresholds):  # type: ignore[no-untyped-def]
        seen.append(scores.copy())
        return build(cls, scores, live, thresholds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StopCurve, "build", classmethod(spy))
        sequence(fit, family)
        held = fit.folds == 2
        correct = np.where(held[:, None], ~table.correct, table.correct)
        sequence(replace(fit, table=regraded(table, correct=correct).as_fit()), family)
    before, after = seen
    assert np.array_equal(before[held], after[held])
    assert not np.array_equal(before[~held], after[~held])


def test_thresholds_lie_between_live_scores_and_ended_rows_change_nothing() -> None:
    table = draw(100, 4)
    live = ~table.ended
    noisy = np.where(live, table.mean_logprob, -1e-6 * np.arange(10))
    assert not live.all()
    one = sequence(data(table), "confidence")
    other = sequence(data(replace(table, mean_logprob=noisy)), "confidence")
    scores = np.unique(table.mean_logprob[live])
    above = np.searchsorted(scores, one.thresholds)  # the score that each threshold stands for
    halfway = (scores[above] + scores[np.maximum(above - 1, 0)]) / 2
    assert np.array_equal(one.thresholds, halfway)
    assert np.array_equal(one.thresholds, other.thresholds)
    assert np.array_equal(one.losses, other.losses)
    learned = sequence(data(table), "learned")
    again = sequence(data(regraded(table, correct=np.where(live, table.correct, True))), "learned")
    assert learned.scorer == again.scorer


@pytest.mark.parametrize("family", FAMILIES)
def test_the_stepper_stops_where_the_curve_does(family: str) -> None:
    schedule = (1, 3, 5, 7, 9)
    found = sequence(data(draw(220, 5)), family, schedule)
    fresh = draw(60, 6)
    curve = found.scorer.curve(fresh, found.thresholds)
    for position in (2, found.thresholds.size // 2, found.thresholds.size - 1):
        threshold = float(found.thresholds[position])
        expected = stops(fresh, family, schedule, found.scorer.model, threshold)
        assert curve.stops(position).tolist() == expected


def test_boosting_waits_for_enough_questions() -> None:
    assert build_sequence(data(draw(199, 7)), "learned-boosted", EVERY) is None
    found = sequence(data(draw(200, 7)), "learned-boosted")
    assert isinstance(found.scorer.model, BoostedModel)


def test_what_cannot_be_learned_is_no_candidate() -> None:
    table = draw(60, 8)
    right = regraded(table, correct=np.ones_like(table.correct))
    assert build_sequence(data(right), "learned", EVERY) is None
    over = replace(table, trace_tokens=np.zeros_like(table.trace_tokens))
    assert build_sequence(data(over), "confidence", EVERY) is None
    with pytest.raises(CalibrationError, match="got 'deer'"):
        build_sequence(data(table), "deer", EVERY)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.floats(-1, 10))
def test_the_position_is_calibrations_walk(losses: list[int], limit: float) -> None:
    found = _bare(losses)
    expected = -1
    for position, count in enumerate(losses):
        if count > limit:
            break
        expected = position
    assert found.index(limit) == expected


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(-1, 30))
def test_cutting_a_chain_keeps_its_careful_thresholds_as_they_were(seed: int, most: int) -> None:
    found = sequence(data(draw(40, seed)), "confidence")
    cut = found.truncate(most)
    kept = cut.thresholds.size
    assert np.array_equal(cut.thresholds, found.thresholds[:kept])
    assert (found.losses[kept:] > most).all()
    assert kept == 1 or cut.losses[-1] <= most
    for position in range(kept):
        assert np.array_equal(cut.curve.stops(position), found.curve.stops(position))
    assert np.array_equal(cut.curve.totals(found.scorer.losses(draw(40, seed)))[0], cut.losses)
    assert np.array_equal(cut.costs, found.costs[:kept])


def _bare(losses: list[int]) -> ThresholdSequence:
    size = len(losses)
    counts = np.array(losses, dtype=float)
    return ThresholdSequence(
        Scorer("confidence", (0,), None),
        -np.arange(size, dtype=float),
        StopCurve.build(
            np.zeros((1, 1)),
            np.ones((1, 1), dtype=bool),
            np.asarray(-np.arange(size) - 1.0, dtype=np.float64),
        ),
        counts[None],
        np.zeros((1, size)),
        counts,
        np.zeros(size),
    )


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_each_resample_chooses_its_own_threshold(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = draw(30, seed)
    fit = data(table)
    found = sequence(fit, "confidence")
    counts = rng.multinomial(30, np.full(30, 1 / 30), size=6).astype(np.float64)
    full = counts.astype(float) @ fit.full_cost
    limits = rng.uniform(-1, 8, 6)
    got = found.resampled_costs(counts, limits, full)
    costs = stopped_counts(table, EVERY, "kv-fork").weighed(PAPER_WEIGHTS)
    lost = found.scorer.losses(table)
    rows = np.arange(30)
    for b in range(6):
        expected = full[b]  # nothing allowed: full thinking
        for position in range(found.thresholds.size):
            at = found.curve.stops(position)
            if counts[b] @ lost[rows, at] > limits[b]:
                break
            expected = counts[b].astype(float) @ costs[rows, at]
        assert got[b] == pytest.approx(expected, rel=1e-5)


def test_the_grid_of_quantiles_runs_from_careful_to_aggressive() -> None:
    assert (np.diff(sequences._GRID) < 0).all()
    assert (sequences._GRID[0], sequences._GRID[-1]) == (1.0, 0.0)
