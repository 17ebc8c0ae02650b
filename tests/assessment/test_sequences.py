"""Rules on fit questions: folds, scores that no own label reaches, thresholds, sums, resamples."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stopadvisor.assessment import sequences
from stopadvisor.assessment.limits import BlockCounts, FitLimits, most_of
from stopadvisor.assessment.sequences import (
    FULL_FEATURES,
    MOST_THRESHOLDS,
    SHORT_FEATURES,
    FitData,
    ThresholdSequence,
    learned_sequence,
)
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.probes.grouping import group_numbers
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.trigger import ListedTrigger, MarkerTrigger
from stopadvisor.rules.costs import PAPER_WEIGHTS, full_counts, stopped_counts
from stopadvisor.rules.families import AGREEMENT_FAMILIES, FIXED_BUDGET, SCALAR_FAMILIES
from stopadvisor.rules.losses import LOST, Guarantee
from stopadvisor.rules.scorer import Schedule, Scorer
from stopadvisor.rules.scores import fit_logistic
from stopadvisor.stats.bounds import StopCurve
from tests import populations
from tests.populations import POPULATIONS, fit_data, regraded, sequence_if_any, with_own_positions
from tests.replay import stops

FREE_FORM = POPULATIONS[3]
LEARNED = ("learned", "learned-keeps")
FAMILIES = (*LEARNED, *SCALAR_FAMILIES, *AGREEMENT_FAMILIES)
BUDGETS = FREE_FORM.budgets
EVERY = ListedTrigger(BUDGETS)


def at(*columns: int, stop_at: int | None = None) -> ListedTrigger:
    """The schedule of some of the budgets."""
    return ListedTrigger(tuple(BUDGETS[c] for c in columns), stop_at)


def draw(n: int, seed: int) -> OpenQuestions:
    return FREE_FORM.draw(n, np.random.default_rng(seed))


def sequence(fit: FitData, family: str, schedule: Schedule = EVERY) -> ThresholdSequence:
    return populations.sequence(fit, family, schedule)


def with_markers(table: OpenQuestions, seed: int) -> OpenQuestions:
    """The same probes, at markers of each question's own."""
    own = with_own_positions(table, np.random.default_rng(seed))
    return replace(own, marker_positions=own.positions)


# --- Fit data -------------------------------------------------------------------------------------


def test_groups_share_fold_and_block(monkeypatch: pytest.MonkeyPatch) -> None:
    table = draw(40, 1)
    table = replace(table, groups=tuple(f"g{i // 3}" for i in range(40)))
    assert group_numbers(table).tolist() == [i // 3 for i in range(40)]
    fit = fit_data(table)
    for values in (fit.folds, fit.blocks):
        by_group: dict[str, set[int]] = {}
        for group, value in zip(table.groups, values.tolist(), strict=True):
            by_group.setdefault(group, set()).add(value)
        assert all(len(v) == 1 for v in by_group.values())
    assert fit.n_blocks == 14
    assert fit.block_sizes.tolist() == [3] * 13 + [1]
    monkeypatch.setattr(sequences, "_MOST_BLOCKS", 5)
    assert fit_data(table).n_blocks == 5


def test_of_too_many_questions_evenly_spaced_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "_MOST_QUESTIONS", 5)
    table = draw(9, 1)
    assert fit_data(table).table.ids == table.ids[::2]
    assert fit_data(table.take(np.arange(5))).table.ids == table.ids[:5]


def test_fewer_groups_than_folds_are_refused() -> None:
    with pytest.raises(CalibrationError, match="at least 5 different fit questions, got 4"):
        fit_data(draw(4, 0))


# --- Sequences ------------------------------------------------------------------------------------


def check_sums(table: OpenQuestions, found: ThresholdSequence) -> None:
    """Compare losses and costs with sums over questions, at three thresholds."""
    assert (np.diff(found.thresholds) < 0).all()
    scorer, view = found.scorer, found.view
    costs = stopped_counts(view, "kv-fork", asking=scorer.asking).weighed(PAPER_WEIGHTS)
    for index in (0, found.thresholds.size // 2, found.thresholds.size - 1):
        lost = cost = 0.0
        for i, stop in enumerate(found.curve.stops(index).tolist()):
            cost += costs[i, stop]
            if stop < view.n_checkpoints:
                assert view.live[i, stop]
                column = table.positions[i].tolist().index(view.positions[i, stop])
                lost += table.full_correct[i] and not table.correct[i, column]
        assert found.losses[index] == lost
        assert found.costs[index] == pytest.approx(cost)
    assert np.allclose(found.counts[0].lost.sum(axis=0), found.losses)
    assert np.allclose(found.block_costs.sum(axis=0), found.costs)


@pytest.mark.parametrize("family", [*FAMILIES, FIXED_BUDGET])
@pytest.mark.parametrize(
    "schedule", [EVERY, at(1, 4, 9), at(1, 4, 7, stop_at=BUDGETS[7])], ids=["all", "some", "ending"]
)
def test_losses_and_costs_are_sums_over_out_of_fold_stops(
    family: str, schedule: ListedTrigger
) -> None:
    table = draw(220, 2)
    fit = fit_data(table)
    check_sums(table, sequence(fit, family, schedule))
    assert np.array_equal(fit.full_cost, full_counts(table).weighed(PAPER_WEIGHTS))


@pytest.mark.parametrize("family", ["deer", "agreement-scaled", "learned"])
def test_losses_and_costs_at_markers(family: str) -> None:
    table = with_markers(draw(150, 3), 4)
    found = sequence(fit_data(table), family, MarkerTrigger((), 20, 4))
    assert not found.view.is_grid
    check_sums(table, found)


@pytest.mark.parametrize("family", LEARNED)
def test_learned_scores_on_fit_are_out_of_fold(family: str) -> None:
    # Flipping the labels of one fold moves nothing where that fold alone is scored.
    table = draw(220, 3)
    fit = fit_data(table)
    held = fit.folds == 2
    correct = np.where(held[:, None], ~table.correct, table.correct)
    other = replace(fit, table=regraded(table, correct=correct).as_fit())
    before, after = sequence_if_any(fit, family, EVERY), sequence_if_any(other, family, EVERY)
    assert before is not None
    assert after is not None
    assert np.array_equal(before.scores[held], after.scores[held])
    assert not np.array_equal(before.scores[~held], after.scores[~held])


def test_one_learned_family_learns_where_nothing_is_lost() -> None:
    table = draw(150, 4)
    kept = regraded(table, correct=table.correct | ~table.full_correct[:, None])
    right, keeps, same = (
        sequence_if_any(fit_data(questions), family, EVERY)
        for questions, family in ((table, "learned"), (table, "learned-keeps"), (kept, "learned"))
    )
    assert right is not None
    assert keeps is not None
    assert same is not None
    assert keeps.scorer.model == same.scorer.model
    assert keeps.scorer.model != right.scorer.model


def test_a_model_reads_what_is_known() -> None:
    table = draw(100, 5)
    silent = replace(
        table,
        mean_logprob=np.full(table.mean_logprob.shape, np.nan),
        mean_entropy=np.full(table.mean_entropy.shape, np.nan),
        entropy_source="none",
    )
    for features in (SHORT_FEATURES, FULL_FEATURES):
        for questions, more in ((table, ("answer_log_odds", "answer_entropy")), (silent, ())):
            rule = learned_sequence(fit_data(questions), "learned", EVERY, features)
            assert rule is not None
            assert rule.scorer.model is not None
            read = more[: 1 if features is SHORT_FEATURES else 2]
            assert rule.scorer.model.features == (*features.names, *read)
    for family in ("confidence", "entropy", "confidence-leap", "deer"):
        assert sequence_if_any(fit_data(silent), family, EVERY) is None
    for family in (*AGREEMENT_FAMILIES, "run-stability", FIXED_BUDGET):
        assert sequence_if_any(fit_data(silent), family, EVERY) is not None


def test_only_probes_that_decide_have_to_be_known() -> None:
    table = draw(60, 6)
    unknown = table.mean_logprob.copy()
    unknown[:, 7] = np.nan
    holes = fit_data(replace(table, mean_logprob=unknown))
    assert sequence_if_any(holes, "confidence", EVERY) is None
    assert (
        sequence_if_any(holes, "confidence", at(1, 7, stop_at=BUDGETS[7])) is not None
    )  # a last resort
    assert sequence_if_any(holes, "confidence", at(1, 6)) is not None


def test_every_question_counts_the_same_however_often_it_is_probed() -> None:
    # Ten probes of a question that lasts weigh as much as the one of a question that does not.
    table = draw(120, 7)
    fit = fit_data(table)
    seen: list[Any] = []

    def spy(x: Any, y: Any, names: Any, **options: Any) -> Any:
        seen.append((len(x), options["weights"]))
        return fit_logistic(x, y, names, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "fit_logistic", spy)
        assert sequence_if_any(fit, "learned", EVERY) is not None
    n_rows, weights = seen[0]  # on all questions
    live = table.live
    question = np.nonzero(live)[0]
    assert n_rows == live.sum()
    sums = np.bincount(question, weights)
    assert sums[live.any(axis=1)] == pytest.approx(n_rows / live.any(axis=1).sum())


AT_MARKERS = MarkerTrigger((), 20, 4)


@pytest.mark.parametrize(
    ("family", "schedule"),
    [
        *((f, s) for f in FAMILIES for s in (at(1, 3, 5, 7, 9), at(1, 3, 6, stop_at=BUDGETS[6]))),
        *((family, AT_MARKERS) for family in ("deer", "agreement-scaled", "learned")),
    ],
)
def test_the_stepper_stops_where_the_curve_does(family: str, schedule: Schedule) -> None:
    known, fresh = draw(220, 5), draw(60, 6)
    if schedule == AT_MARKERS:
        known, fresh = with_markers(known, 9), with_markers(fresh, 11)
    found = sequence(fit_data(known), family, schedule)
    curve = found.scorer.curve(found.scorer.view(fresh), found.thresholds)
    for index in (0, found.thresholds.size // 2, found.thresholds.size - 1):
        expected = stops(fresh, found.scorer, float(found.thresholds[index]))
        assert curve.stops(index).tolist() == expected


def test_what_cannot_be_learned_is_no_candidate() -> None:
    table = draw(60, 8)
    right = regraded(table, correct=np.ones_like(table.correct))
    assert sequence_if_any(fit_data(right), "learned", EVERY) is None
    over = replace(table, trace_tokens=np.zeros_like(table.trace_tokens))
    assert sequence_if_any(fit_data(over), "confidence", EVERY) is None
    with pytest.raises(CalibrationError, match="got 'puma'"):
        sequence_if_any(fit_data(table), "puma", EVERY)


# --- Thresholds -----------------------------------------------------------------------------------


def test_thresholds_lie_halfway_below_scores_at_which_somebody_stops_earlier() -> None:
    table = draw(12, 4)
    found = sequence(fit_data(table), "confidence").thresholds
    scores = table.mean_logprob
    best: set[float] = set()
    for i in range(12):
        highest = -np.inf
        for j in np.flatnonzero(table.live[i]).tolist():
            if scores[i, j] > highest:
                highest = scores[i, j]
                best.add(float(highest))
    values = sorted(best)
    below = [values[0], *values[:-1]]
    expected = [(v + b) / 2 for v, b in zip(values, below, strict=True)]
    assert found.tolist() == pytest.approx([values[-1] + 1, *reversed(expected)])
    # At the first nobody stops; each of the others stops somebody earlier than the one before.
    curve = sequence(fit_data(table), "confidence").curve
    stopped = [curve.stops(k) for k in range(found.size)]
    assert (stopped[0] == table.n_checkpoints).all()
    for careful, next_one in pairwise(stopped):
        assert (next_one <= careful).all()
        assert (next_one < careful).any()


def test_many_thresholds_are_thinned_evenly() -> None:
    table = draw(400, 4)
    found = sequence(fit_data(table), "confidence").thresholds
    assert found.size == MOST_THRESHOLDS
    live = table.mean_logprob[table.live]
    above = [int((live >= t).sum()) for t in found.tolist()]
    assert above[0] == 0
    assert above[-1] == live.size  # the most aggressive one stops everybody at once
    assert max(np.diff(above)) < live.size / 50  # no jump between two


@pytest.mark.parametrize("family", AGREEMENT_FAMILIES)
def test_an_answer_that_has_not_stood_is_no_threshold(family: str) -> None:
    found = sequence(fit_data(draw(60, 4)), family)
    assert (found.thresholds > 0).all()
    assert (found.scores[found.view.live] == 0).any()


def test_thresholds_of_a_fixed_budget_are_its_positions() -> None:
    found = sequence(fit_data(draw(60, 4)), FIXED_BUDGET)
    assert found.thresholds.tolist() == [float(b) for b in reversed(BUDGETS)]
    for index, budget in enumerate(reversed(BUDGETS)):
        at_once = found.curve.stops(index)
        for i, stop in enumerate(at_once.tolist()):
            goes_on = found.view.trace_tokens[i] > budget
            assert stop == (BUDGETS.index(budget) if goes_on else len(BUDGETS))


def test_ended_rows_change_nothing() -> None:
    table = draw(100, 4)
    live = ~table.ended
    noisy = np.where(live, table.mean_logprob, -1e-6 * np.arange(10))
    assert not live.all()
    one = sequence(fit_data(table), "confidence")
    other = sequence(fit_data(replace(table, mean_logprob=noisy)), "confidence")
    assert np.array_equal(one.thresholds, other.thresholds)
    assert np.array_equal(one.losses, other.losses)
    learned = sequence(fit_data(table), "learned")
    again = sequence(
        fit_data(regraded(table, correct=np.where(live, table.correct, True))), "learned"
    )
    assert learned.scorer == again.scorer


def test_nobody_has_to_stop_for_there_to_be_a_threshold() -> None:
    table = replace(draw(20, 4), answer_codes=np.tile(np.arange(10), (20, 1)))
    found = sequence(fit_data(table), "agreement")  # no answer ever stands
    assert found.thresholds.tolist() == [1.0]
    assert (found.curve.stops(0) == 10).all()


# --- Indices and resamples ------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.floats(-1, 10))
def test_the_position_is_calibrations_walk(losses: list[int], limit: float) -> None:
    found = _bare(losses)
    expected = -1
    for position, count in enumerate(losses):
        if count > limit + 1e-6:
            break
        expected = position
    assert found.index(FitLimits((np.array([limit]),), (1.0,))) == expected


@pytest.mark.parametrize("size", [0.0, 4.0])
def test_a_limit_of_no_calibration_question_passes_nowhere(size: float) -> None:
    counts = BlockCounts(np.zeros((3, 5)), None, np.full(3, size))
    limit = FitLimits((most_of(Guarantee("lost", 0.1), 0, 0.05),), (0.0,))
    assert limit.last([counts], np.ones((2, 3))).tolist() == [-1, -1]


def _bare(losses: list[int]) -> ThresholdSequence:
    size = len(losses)
    counts = np.array(losses, dtype=float)
    view = draw(1, 0).as_fit()
    return ThresholdSequence(
        Scorer("confidence", EVERY, None),
        view,
        view.mean_logprob,
        -np.arange(size, dtype=float),
        StopCurve.build(
            np.zeros((1, 1)),
            np.ones((1, 1), dtype=bool),
            np.asarray(-np.arange(size) - 1.0, dtype=np.float64),
        ),
        np.zeros((1, size)),
        counts,
        np.zeros(size),
        (BlockCounts(counts[None], None, np.ones(1)),),
        0.0,
    )


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_each_resample_chooses_its_own_threshold(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = draw(30, seed)
    fit = fit_data(table)
    found = sequence(fit, "confidence")
    counts = rng.multinomial(30, np.full(30, 1 / 30), size=6).astype(np.float64)
    full = counts.astype(float) @ fit.full_cost
    limit = float(rng.choice([0.0, 1.0, rng.uniform(-1, 8)]))
    index = FitLimits((np.array([limit]),), (30.0,)).last(found.counts, counts)
    got = found.costs_at(counts, index, full)
    costs = stopped_counts(table, "kv-fork").weighed(PAPER_WEIGHTS)
    lost = LOST.of(table)
    rows = np.arange(30)
    for b in range(6):
        expected, reached = full[b], -1  # nothing allowed: full thinking
        for position in range(found.thresholds.size):
            at = found.curve.stops(position)
            if counts[b] @ lost[rows, at] > limit + 1e-6:
                break
            expected, reached = counts[b].astype(float) @ costs[rows, at], position
        assert index[b] == reached
        assert got[b] == pytest.approx(expected, rel=1e-5)
