"""The features against one question at a time, written as the paper's table defines them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stopadvisor.ground.errors import ProbeError
from stopadvisor.probes.table import ProbeTable
from stopadvisor.rules.features import AUDIT_FEATURES, FEATURES, feature_array, run_lengths
from tests.populations import POPULATIONS


def loop_features(table: ProbeTable, i: int, schedule: list[int]) -> list[dict[str, float]]:
    """One question, checkpoint by checkpoint, from what was seen so far and no more."""
    rows = []
    answers: list[int] = []
    run = 0
    for position, j in enumerate(schedule):
        answer = int(table.answer_codes[i, j])
        run = run + 1 if answers and answers[-1] == answer else 1
        match = 1.0 if answers and answers[-1] == answer else 0.0
        answers.append(answer)
        prefix = min(int(table.trace_tokens[i]), int(table.budgets[j]))
        last = int(table.budgets[schedule[-1]])
        rows.append(
            {
                "budget_fraction": int(table.budgets[j]) / last if last else 0.0,
                "checkpoint_index": position / (len(schedule) - 1) if len(schedule) > 1 else 0.0,
                "answer_logprob": float(table.mean_logprob[i, j]),
                "answer_entropy": float(table.mean_entropy[i, j]),
                "previous_match": match,
                "run_length": float(run),
                "vote_share": answers.count(answer) / len(answers),
                "marker_density": float(table.markers[i, j]) / prefix if prefix else 0.0,
                "ended": float(int(table.trace_tokens[i]) <= int(table.budgets[j])),
                "think_tokens": float(prefix),
            }
        )
    return rows


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sets(st.integers(0, 9), min_size=1).map(sorted))
def test_equals_a_loop_bit_for_bit(seed: int, schedule: list[int]) -> None:
    table = POPULATIONS[3].draw(12, np.random.default_rng(seed))
    names = FEATURES + AUDIT_FEATURES
    found = feature_array(table.select(schedule), names)
    for i in range(table.n_questions):
        expected = [[row[name] for name in names] for row in loop_features(table, i, schedule)]
        assert found[i].tolist() == expected


def test_nothing_looks_ahead() -> None:
    # Whatever happens after a checkpoint, its features stay.
    table = POPULATIONS[3].draw(30, np.random.default_rng(1))
    other = POPULATIONS[3].draw(30, np.random.default_rng(2))
    mixed = {
        name: np.concatenate([getattr(table, name)[:, :6], getattr(other, name)[:, 6:]], axis=1)
        for name in ("answer_codes", "mean_logprob", "mean_entropy", "markers")
    }
    changed = replace(table, **mixed)  # type: ignore[arg-type]
    assert np.array_equal(feature_array(table)[:, :6], feature_array(changed)[:, :6])


def test_run_lengths_start_again_when_the_answer_changes() -> None:
    codes = np.array([[3, 3, 4, 4, 4, 3], [1, 1, 1, 1, 1, 1], [0, 1, 2, 3, 4, 5]])
    assert run_lengths(codes).tolist() == [
        [1, 2, 1, 2, 3, 1],
        [1, 2, 3, 4, 5, 6],
        [1, 1, 1, 1, 1, 1],
    ]


def test_an_unknown_feature_or_an_empty_schedule_is_refused() -> None:
    table = POPULATIONS[0].draw(2, np.random.default_rng(0))
    with pytest.raises(ProbeError, match="got 'length'"):
        feature_array(table, ["length"])
    with pytest.raises(ProbeError, match="at least one checkpoint"):
        feature_array(table.select([]))
