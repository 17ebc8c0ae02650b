"""Features and scores against plain Python, one question at a time and bit for bit."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stopadvisor.assessment.choice import Settings, choose
from stopadvisor.ground.errors import CalibrationError, ProbeError
from stopadvisor.paper.protocol import PaperSetting
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.table import EMPTY_ANSWER
from stopadvisor.rules.families import STOP_SCALARS, display_threshold, rule_name
from stopadvisor.rules.features import AUDIT_FEATURES, FEATURES, POSITION_FEATURES, feature_array
from stopadvisor.rules.scorer import grid_view
from stopadvisor.rules.scores import scalar_scores
from tests.populations import FREE_FORM, POPULATIONS, with_own_positions

SCORES = (*STOP_SCALARS, "fixed-budget")


def draw(n: int, seed: int, *, ragged: bool = True) -> OpenQuestions:
    """Questions with empty answers, certain ones, and answers that last."""
    rng = np.random.default_rng(seed)
    table = FREE_FORM.draw(n, rng)
    table = with_own_positions(table, rng) if ragged else table
    codes = rng.integers(0, 3, table.answer_codes.shape)
    codes[rng.random(codes.shape) < 0.3] = EMPTY_ANSWER
    logprob = np.where(rng.random(codes.shape) < 0.1, 0.0, table.mean_logprob)
    return replace(table, answer_codes=codes, mean_logprob=logprob)


def one_by_one(table: OpenQuestions, i: int, columns: list[int]) -> list[dict[str, float]]:
    """Everything at each probe of a question, from the probes so far and no more.

    Of a grid `columns` are all of the schedule, and the paper's eight features are included.
    """
    rows: list[dict[str, float]] = []
    answers: list[int] = []
    run, repeated, began, before, surer = 0, 0, 0, 0, 1.0
    length, last = int(table.trace_tokens[i]), int(table.positions[i, columns[-1:]].sum())
    for made, column in enumerate(columns, start=1):
        p = int(table.positions[i, column])
        answer = int(table.answer_codes[i, column])
        same = bool(answers) and answers[-1] == answer
        began = began if same else p
        repeated = repeated + 1 if same else 1
        run = 0 if answer == EMPTY_ANSWER else run + 1 if same else 1
        answers.append(answer)
        equal = answers.count(answer)
        votes = 0 if answer == EMPTY_ANSWER else equal
        lp, entropy = float(table.mean_logprob[i, column]), float(table.mean_entropy[i, column])
        confidence = math.exp(lp)
        odds = lp - math.log(-math.expm1(min(lp, -1e-12)))
        stood = float(p - began if run >= 2 else 0)
        prefix = min(length, p)
        rows.append(
            {
                "position": float(p),
                "log_position": math.log(max(p, 1)),
                "log_run": math.log1p(run),
                "log_votes": math.log1p(votes),
                "vote_fraction": votes / made,
                "tokens_since_probe": float(p - before),
                "answer_log_odds": max(-12.0, min(12.0, odds)),
                "agreement": stood,
                "agreement-scaled": stood / math.sqrt(max(p, 1)),
                "deer": lp,
                "confidence": lp,
                "entropy": -entropy,
                "run-stability": float(repeated),
                "confidence-leap": max(0.0, confidence - surer) * confidence,
                "fixed-budget": float(p),
                "budget_fraction": p / last if last else 0.0,
                "checkpoint_index": (made - 1) / (len(columns) - 1) if len(columns) > 1 else 0.0,
                "answer_logprob": lp,
                "answer_entropy": entropy,
                "previous_match": float(same),
                "run_length": float(repeated),
                "vote_share": equal / made,
                "marker_density": float(table.markers[i, column]) / prefix if prefix else 0.0,
                "ended": float(length <= p),
                "think_tokens": float(prefix),
            }
        )
        before, surer = p, confidence
    return rows


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.sets(st.integers(0, 9), min_size=1).map(sorted))
def test_equals_a_loop_bit_for_bit(seed: int, ragged: bool, schedule: list[int]) -> None:
    table = draw(12, seed, ragged=ragged)
    part = table.select(schedule)
    names = POSITION_FEATURES if ragged else (*POSITION_FEATURES, *FEATURES, *AUDIT_FEATURES)
    found = feature_array(part, names)
    scores = {family: scalar_scores(family, part) for family in SCORES}
    assert np.isfinite(found).all()  # after the last probe too
    for i in range(table.n_questions):
        columns = [c for c in schedule if table.live[i, c]] if ragged else schedule
        for k, row in enumerate(one_by_one(table, i, columns)):
            assert found[i, k].tolist() == [row[name] for name in names]
            for family in SCORES:
                assert scores[family][i, k] == row[family]


def test_an_unknown_log_probability_stays_unknown() -> None:
    table = draw(20, 2)
    logprob = table.mean_logprob.copy()
    logprob[table.live] = np.nan
    table = replace(table, mean_logprob=logprob)
    names = ("answer_log_odds", "log_run")
    found = feature_array(table, names)[table.live]
    assert np.isnan(found[:, 0]).all()
    assert np.isfinite(found[:, 1]).all()


def test_an_unknown_feature_or_an_empty_schedule_is_refused() -> None:
    table = POPULATIONS[0].draw(2, np.random.default_rng(0))
    with pytest.raises(ProbeError, match="got 'length'"):
        feature_array(table, ["length"])
    with pytest.raises(ProbeError, match="at least one checkpoint"):
        feature_array(table.select([]))


@pytest.mark.parametrize(
    ("family", "linear", "shown"),
    [
        ("deer", -0.1, math.exp(-0.1)),
        ("learned-keeps", 0.0, 0.5),
        ("learned", -60.0, math.exp(-60)),
        ("agreement", 384.0, 384.0),
        ("agreement-scaled", 7.5, 7.5),
        ("fixed-budget", 2048.0, 2048.0),
    ],
)
def test_thresholds_are_shown_as_people_know_them(family: str, linear: float, shown: float) -> None:
    assert display_threshold(family, linear) == shown
    assert rule_name(family) != family  # it has a name in words


def test_a_grid_is_the_special_case() -> None:
    table = FREE_FORM.draw(30, np.random.default_rng(1))
    assert table.is_grid
    assert table.positions.base is not None  # one row, shown for all questions
    assert table.positions.strides[0] == 0
    part = table.take(np.arange(5))
    assert part.is_grid
    assert part.positions.strides[0] == 0
    assert np.array_equal(part.budgets, table.budgets)
    ragged = draw(40, 0)
    same = ragged.take(np.flatnonzero(ragged.positions[:, -1] >= 0)[:1])
    assert same.is_grid  # one question is always on its own grid
    assert not ragged.is_grid
    with pytest.raises(ProbeError, match="positions of their own"):
        _ = ragged.budgets


def test_what_takes_a_grid_says_so() -> None:
    table = draw(200, 0)
    for name in ("budget_fraction", "checkpoint_index"):
        with pytest.raises(ProbeError, match=f"'{name}' needs one grid"):
            feature_array(table, names=(name,))
    with pytest.raises(ProbeError, match="last-checkpoint reference needs one grid"):
        table.with_reference("last-checkpoint")
    with pytest.raises(ProbeError, match="one grid"):
        PaperSetting.build(table)
    with pytest.raises(ProbeError, match="share no position"):
        grid_view(table)
    with pytest.raises(CalibrationError, match="no family can be measured"):
        choose(table.as_fit(), 100, Settings(families=("learned", "confidence")))
