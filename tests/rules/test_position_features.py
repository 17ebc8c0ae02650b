"""Features and scores of probes at positions of their own, against plain Python."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.table import EMPTY_ANSWER
from stopadvisor.rules.families import STOP_SCALARS, display_threshold, rule_name
from stopadvisor.rules.features import POSITION_FEATURES, feature_array
from stopadvisor.rules.scores import scalar_scores
from tests.populations import FREE_FORM, with_own_positions

SCORES = ("agreement", "agreement-scaled", "deer", "fixed-budget")


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
    """Everything at each probe of a question, from the probes so far and no more."""
    rows: list[dict[str, float]] = []
    answers: list[int] = []
    run, began, before = 0, 0, 0
    for made, column in enumerate(columns, start=1):
        p = int(table.positions[i, column])
        answer = int(table.answer_codes[i, column])
        same = bool(answers) and answers[-1] == answer
        began = began if same else p
        run = 0 if answer == EMPTY_ANSWER else run + 1 if same else 1
        answers.append(answer)
        votes = 0 if answer == EMPTY_ANSWER else answers.count(answer)
        lp = float(table.mean_logprob[i, column])
        odds = lp - math.log(-math.expm1(min(lp, -1e-12)))
        stood = float(p - began if run >= 2 else 0)
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
                "fixed-budget": float(p),
            }
        )
        before = p
    return rows


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.sets(st.integers(0, 9), min_size=1).map(sorted))
def test_equals_a_loop_bit_for_bit(seed: int, ragged: bool, schedule: list[int]) -> None:
    table = draw(12, seed, ragged=ragged)
    part = table.select(schedule)
    found = feature_array(part, POSITION_FEATURES)
    scores = {family: scalar_scores(family, part) for family in SCORES}
    assert np.isfinite(found).all()  # after the last probe too
    for i in range(table.n_questions):
        live = [column for column in schedule if table.live[i, column]]
        for k, row in enumerate(one_by_one(table, i, live)):
            assert found[i, k].tolist() == [row[name] for name in POSITION_FEATURES]
            for family in SCORES:
                assert scores[family][i, k] == row[family]


def test_padding_after_the_last_probe_changes_nothing() -> None:
    table = draw(60, 0)
    live = table.live
    other: dict[str, Any] = {
        "answer_codes": np.where(live, table.answer_codes, 7),
        "mean_logprob": np.where(live, table.mean_logprob, -3.0),
    }
    assert not live.all()
    changed = replace(table, **other)
    features = feature_array(table, POSITION_FEATURES)
    again = feature_array(changed, POSITION_FEATURES)
    assert np.array_equal(features[live], again[live])
    for family in (*SCORES, *STOP_SCALARS):
        here, there = (scalar_scores(family, t)[live] for t in (table, changed))
        assert np.array_equal(here, there)


def test_an_unknown_log_probability_stays_unknown() -> None:
    table = draw(20, 2)
    logprob = table.mean_logprob.copy()
    logprob[table.live] = np.nan
    table = replace(table, mean_logprob=logprob)
    names = ("answer_log_odds", "log_run")
    found = feature_array(table, names)[table.live]
    assert np.isnan(found[:, 0]).all()
    assert np.isfinite(found[:, 1]).all()


@pytest.mark.parametrize(
    ("family", "linear", "shown"),
    [
        ("deer", -0.1, math.exp(-0.1)),
        ("learned-keeps", 0.0, 0.5),
        ("agreement", 384.0, 384.0),
        ("agreement-scaled", 7.5, 7.5),
        ("fixed-budget", 2048.0, 2048.0),
    ],
)
def test_thresholds_are_shown_as_people_know_them(family: str, linear: float, shown: float) -> None:
    assert display_threshold(family, linear) == shown
    assert rule_name(family) != family  # it has a name in words
