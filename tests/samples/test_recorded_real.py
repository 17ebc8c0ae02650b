"""The traces of real models are what their README says, and the simple rules do what they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stopadvisor.ground.arrays import IntArray
from stopadvisor.rules.losses import LOST
from stopadvisor.studies.rivals import draw_split
from tests.benchmarks.real_advisor import StopAdvisor
from tests.benchmarks.real_rivals import (
    Agreement,
    OneSequence,
    Sequence,
    agreement,
    confidence_at_waits,
    fixed_budget,
    most_losses,
)
from tests.benchmarks.real_traces import (
    HALVES,
    MODELS,
    PASSES,
    RECORDED,
    WAIT_MODEL,
    Traces,
    Waits,
    half_of,
    load_traces,
    load_waits,
)
from tests.benchmarks.real_trial import draw_from_population

NUMBERS = range(len(PASSES))
# Two questions, probed at 64, 128 and 192 tokens.  The first is right from 128 on and ends by
# itself at 200; the second has no answer at 128, is wrong at 192, and its thinking is cut.
TINY = Traces(
    questions=("math500/0000", "math500/0001"),
    certified=np.array([True, True]),
    positions=np.array([64, 128, 192]),
    codes=np.array([[2, 1, 1], [3, 0, 3]]),
    probe_tokens=np.array([[5, 5, 5], [4, 32, 4]]),
    markers=np.zeros((2, 3), dtype=np.int64),
    think_tokens=np.array([200, 256]),
    total_tokens=np.array([260, 256]),
    prompt_tokens=np.array([10, 20]),
    truncated=np.array([False, True]),
    full_correct=np.array([True, False]),
    full_codes=np.array([1, 0]),
)


def test_files_are_named_in_the_readme_and_hold_no_objects() -> None:
    files = sorted(RECORDED.glob("*.npz"))
    assert len(files) == 39
    notice = (RECORDED / "README.md").read_text(encoding="utf-8")
    assert "Copyright (c) 2025 Hao AI Lab" in notice
    licence = (RECORDED / "LICENSE").read_text(encoding="utf-8")
    assert "Copyright (c) 2025 Hao AI Lab" in licence  # as it asks of every copy
    for file in files:
        with np.load(file, allow_pickle=False) as arrays:
            assert {array for array in arrays.files if f"`{array}`" not in notice} == set()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("number", NUMBERS)
def test_a_pass_holds_every_question_once_and_ends_where_answers_end(
    model: str, number: int
) -> None:
    traces = load_traces(model, number)
    assert len({*traces.questions}) == len(traces.questions) == 570
    assert traces.certified.sum() == 500
    np.testing.assert_array_equal(
        traces.live, traces.positions < traces.think_tokens[:, None], "live"
    )
    assert not traces.full_correct[traces.truncated & (traces.total_tokens >= 16_384)].any()


@pytest.mark.parametrize("number", NUMBERS)
def test_trial_answers_lie_inside_the_thinking(number: int) -> None:
    waits, traces = load_waits(number), load_traces(WAIT_MODEL, number, with_waits=True)
    assert waits.positions.shape == (400, 30)
    assert (waits.positions <= traces.think_tokens[:, None]).all()
    assert (waits.mean_logprob <= 0).all()


def test_halves_are_settled_by_the_name_alone() -> None:
    traces = load_traces(MODELS[0], 0)
    halves = [traces.rows_of(half) for half in HALVES]
    assert [len(half) for half in halves] == [259, 241]
    np.testing.assert_array_equal(np.sort(np.concatenate(halves)), traces.rows_of("all"))
    assert half_of("math500/0000") == half_of("math500/0000")


def test_fixed_budget_pays_its_tokens_and_one_question() -> None:
    sequence = fixed_budget(TINY, 1.0)
    np.testing.assert_array_equal(sequence.lost, [[False, False, True], [False, False, False]])
    # 192 + 5 decoded, 10 + 8 read, and so on to 64.
    np.testing.assert_array_equal(sequence.cost[0], [215, 151, 87])
    np.testing.assert_array_equal(sequence.full_cost, [270, 276])


def test_equal_answers_need_answers() -> None:
    sequence = agreement(TINY, 0.0, 64)  # k = 3, then 2
    np.testing.assert_array_equal(sequence.lost, np.zeros((2, 2)))
    # The first never has three; two at 192.  The second's answers have a gap between them.
    np.testing.assert_array_equal(sequence.cost, [[260 + 15, 192 + 15], [256 + 40, 256 + 40]])


def test_confidence_stops_at_the_first_sure_wait() -> None:
    waits = Waits(
        positions=np.array([[30, 90], [50, -1]]),
        codes=np.array([[2, 1], [3, -1]]),
        mean_logprob=np.log(np.array([[0.6, 0.9], [0.8, 1.0]])),
        probe_tokens=np.array([[6, 7], [8, 0]]),
    )
    sequence = confidence_at_waits(TINY, waits, 0.0)
    assert sequence.cost[0, 0] == 260 + 13  # log-odds of 14 are never reached
    assert sequence.cost[0, -1] == 30 + 6
    assert set(sequence.cost[0]) == {273, 103, 36}
    assert set(sequence.cost[1]) == {264, 58}
    np.testing.assert_array_equal(sequence.lost[0], sequence.cost[0] == 36)


def test_a_sequence_is_walked_to_its_first_failure() -> None:
    lost = np.zeros((100, 3), dtype=bool)
    lost[:9, 1] = True
    sequence = Sequence(lost, np.tile([3.0, 2.0, 1.0], (100, 1)), np.full(100, 4.0), lost)
    rows = np.arange(100)
    assert most_losses(100, 0.10, 0.05) == 4
    # The boldest loses none, and is not reached.
    assert OneSequence(sequence, 0.10, 0.05).certify(rows).cost.mean() == 3.0
    assert OneSequence(sequence, 0.10, 0.05).certify(rows[50:]).cost.mean() == 1.0
    assert OneSequence(sequence, 0.10, 0.05).certify(rows[:20]).cost.mean() == 4.0


def test_agreement_takes_the_cheaper_interval_on_fit() -> None:
    nobody = np.zeros((100, 1), dtype=bool)
    dear, cheap = (
        Sequence(nobody, np.full((100, 1), cost), np.full(100, 9.0), nobody) for cost in (5.0, 4.0)
    )
    chosen = Agreement((dear, cheap), 0.10, 0.05).fit(np.arange(50), 50)
    assert chosen.certify(np.arange(50, 100)).cost.mean() == 4.0


def test_parts_of_a_split_are_disjoint_and_draws_may_repeat() -> None:
    rows = np.arange(250)
    split = draw_split(rows, 160, 60, 3)
    parts = [split.fit, split.calibration, split.held_out]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), rows)
    drawn = draw_from_population(rows, 160, 240, 3)
    assert drawn.calibration.size == 240
    assert {*drawn.calibration.tolist()} <= {*drawn.held_out.tolist()}
    assert not {*drawn.held_out.tolist()} & {*drawn.fit.tolist()}


@pytest.mark.slow
@pytest.mark.parametrize("with_waits", [False, True], ids=["text", "confidence"])
def test_stopadvisor_certifies_what_it_chose_on_fit_questions_alone(with_waits: bool) -> None:
    traces = load_traces(WAIT_MODEL, 0, with_waits=with_waits)
    waits = load_waits(0) if with_waits else None
    sizes = (128, 192) if with_waits else (160, 240)
    split = draw_from_population(traces.rows_of("develop"), *sizes, 0)
    advisor = StopAdvisor(traces, waits, 0.10, 0.05, 1.0)
    chosen = advisor.fit(split.fit, sizes[1])
    sequence = chosen.choice.sequences[0]
    assert (sequence.scorer.model is not None) == with_waits  # at "Wait" by the confidence there

    outcome = chosen.certify(split.calibration)
    assert outcome.cost[split.held_out].sum() < traces.full_cost(1.0)[split.held_out].sum()
    assert outcome.lost[split.calibration].sum() <= most_losses(sizes[1], 0.10, 0.05)

    # Everybody else's right answers are wrong now, and their other answers right.
    outside = np.setdiff1d(np.arange(len(traces.questions)), split.fit)
    full_correct = traces.full_correct.copy()
    full_correct[outside] = np.random.default_rng(0).permutation(full_correct[outside])
    other = StopAdvisor(
        replace(traces, codes=_right_for_wrong(traces.codes, outside), full_correct=full_correct),
        waits and replace(waits, codes=_right_for_wrong(waits.codes, outside)),
        0.10,
        0.05,
        1.0,
    ).fit(split.fit, sizes[1])
    for one, same in zip(chosen.choice.sequences, other.choice.sequences, strict=True):
        assert one.scorer == same.scorer
        np.testing.assert_array_equal(one.thresholds, same.thresholds)
    moved = LOST.of(sequence.scorer.view(other.table))
    assert (moved != LOST.of(sequence.scorer.view(chosen.table)))[outside].any()


def _right_for_wrong(codes: IntArray, rows: IntArray) -> IntArray:
    """Answers equal each other where they did before, but 1, which is right, and 2 trade places."""
    codes = codes.copy()
    swapped = np.where(codes[rows] == 1, 2, np.where(codes[rows] == 2, 1, codes[rows]))
    codes[rows] = swapped
    return codes
