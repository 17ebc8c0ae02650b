"""Losses: what each counts, that lost answers differ, and that grades need gold."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from stopadvisor.ground.errors import CalibrationError
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.table import EMPTY_ANSWER
from stopadvisor.rules.losses import DIFFERS, DROP, LOSSES, LOST, Guarantee, lost_correct
from tests.populations import POPULATIONS, KnownPopulation, make_table, regraded


def test_lost_correct_needs_full_thinking_right_and_the_stop_wrong() -> None:
    correct = np.array([[True, False], [False, False], [False, True]])
    full = np.array([True, True, False])
    assert lost_correct(correct, full).tolist() == [
        [False, True, False],
        [True, True, False],
        [False, False, False],  # full thinking is wrong: nothing can be lost
    ]


def table(**changes: Any) -> OpenQuestions:
    """Four questions at two budgets; the last trace ends before the second."""
    n, m = 4, 2
    empty = np.zeros((n, m))
    values: dict[str, Any] = {
        "correct": np.array([[0, 1], [1, 0], [0, 0], [0, 1]], dtype=bool),
        "codes": np.array([[3, 1], [1, 2], [EMPTY_ANSWER, 4], [5, 1]]),
        "trace": np.array([900, 900, 900, 150]),
        "natural_correct": np.array([True, False, False, True]),
        "natural_tokens": np.full(n, 9.0),
        "natural_code": np.array([1, 2, 4, 1]),
        "logprob": empty,
        "entropy": empty,
        "markers": empty,
        "probe_tokens": empty,
        "prompt": np.zeros(n, dtype=np.int64),
    }
    return make_table(np.array([100, 200]), **(values | changes))


def test_each_loss_counts_what_it_says() -> None:
    found = table()
    assert LOST.of(found).tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0], [1, 0, 0]]
    # The third reply is empty at first; the second answers something else, and better.
    assert DIFFERS.of(found).tolist() == [[1, 0, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0]]
    assert DROP.of(found).tolist() == [[1, 0, 0], [-1, 0, 0], [0, 0, 0], [1, 0, 0]]


def test_of_a_trace_that_was_cut_off_every_stop_differs_and_none_gains() -> None:
    cut = replace(table(), truncated=np.array([False, True, True, False]))
    assert DIFFERS.of(cut)[1:3].tolist() == [[1, 1, 0], [1, 1, 0]]
    assert DROP.of(cut)[1].tolist() == [0, 0, 0]
    assert LOST.of(cut).tolist() == LOST.of(table()).tolist()


def test_equal_answers_that_were_graded_differently_differ() -> None:
    one = regraded(table(), natural_correct=np.array([True, True, False, True]))
    assert LOST.of(one)[1].tolist() == [0, 1, 0]  # the same answer, graded wrong there
    assert DIFFERS.of(one)[1].tolist() == [1, 1, 0]


def test_in_archives_the_last_checkpoint_answers_for_full_thinking() -> None:
    found = table(natural_correct=None, natural_tokens=None, natural_code=None)
    assert DIFFERS.of(found).tolist() == [[1, 0, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0]]
    empty = table(
        natural_correct=None,
        natural_tokens=None,
        natural_code=None,
        codes=np.full((4, 2), EMPTY_ANSWER),
    )
    assert DIFFERS.of(empty)[:3].tolist() == [[1, 0, 0]] * 3  # itself, though it says nothing


@given(st.integers(0, 2**32 - 1), st.sampled_from(POPULATIONS[1:4]))
def test_what_is_lost_differs_question_by_question(seed: int, law: KnownPopulation) -> None:
    rng = np.random.default_rng(seed)
    drawn = law.draw(40, rng)
    codes = rng.permuted(drawn.answer_codes, axis=1)  # grades and answers that do not agree
    mixed = replace(drawn, answer_codes=codes, truncated=rng.random(40) < 0.2)
    for each in (drawn, mixed):
        lost, differs, drop = (LOSSES[name].of(each) for name in ("lost", "differs", "drop"))
        assert (lost <= differs).all()
        assert (drop <= lost).all()
        assert not (differs[:, :-1] & each.ended).any()


def test_of_visible_answers_it_is_those_that_are_compared() -> None:
    bare = table()
    shown = replace(
        bare,
        visible_tokens=np.full((4, 2), 5.0),
        _outcomes=replace(
            bare.outcomes,
            visible_correct=np.array([[1, 1], [0, 0], [0, 0], [1, 1]], dtype=bool),
            visible_code=np.array([[1, 1], [2, 2], [4, -1], [1, 1]]),
        ),
    )
    assert DIFFERS.of(shown).tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert LOST.of(shown).sum() == 0
    assert DIFFERS.of(shown.with_on_stop("probe")).tolist() == DIFFERS.of(bare).tolist()
    unnumbered = regraded(shown, visible_code=None)
    with pytest.raises(CalibrationError, match="no visible answers to compare"):
        DIFFERS.of(unnumbered)


def test_without_natural_answers_nothing_can_be_compared() -> None:
    with pytest.raises(CalibrationError, match=r"'differs' compares answers: .* natural"):
        DIFFERS.of(table(natural_code=None))


@pytest.mark.parametrize("loss", [LOST, DROP], ids=lambda loss: loss.name)
def test_what_counts_grades_is_refused_without_gold(loss: Any) -> None:
    with pytest.raises(CalibrationError, match=f"loss '{loss.name}' needs gold .* label them"):
        loss.of(SimpleNamespace(graded_by="agreement"))


def test_losses_go_by_name() -> None:
    assert [loss.name for loss in LOSSES.values() if loss.is_binary] == ["lost", "differs"]
    with pytest.raises(CalibrationError, match=r"must be one of .*'drop'.* got 'regret'"):
        Guarantee("regret", 0.1)  # type: ignore[arg-type]
