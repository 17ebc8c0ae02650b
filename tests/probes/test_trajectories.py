"""The five trajectory types, the profile and the regime it predicts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stopadvisor.ground.errors import ProbeError
from stopadvisor.probes.trajectories import TYPES, classify, profile, regime, trajectory
from tests.populations import POPULATIONS


def loop_type(row: list[bool]) -> str:
    """The published scripts' rule for one trajectory."""
    flips = sum(a != b for a, b in pairwise(row))
    if row[0] and row[-1]:
        return "early_solved"
    if not row[0] and row[-1]:
        return "beneficial" if flips == 1 else "oscillating"
    return "harmful" if any(row) else "unsolved"


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=30))
def test_every_trajectory_has_the_type_of_the_published_rule(rows: list[list[bool]]) -> None:
    found = classify(np.array(rows))
    assert [TYPES[k] for k in found.tolist()] == [loop_type(row) for row in rows]


# Paper, Table "Trajectory decomposition" (percent), with the regime that its text reports.
PAPER_ROWS = [
    ("GSM8K 8B", (23.8, 55.6, 6.2, 5.0, 9.4), "learned"),
    ("GSM8K 32B", (35.8, 43.1, 3.7, 3.4, 14.0), "learned"),
    ("MATH-500 8B", (20.4, 32.4, 4.4, 37.4, 5.4), "learned"),
    ("MATH-500 32B", (26.0, 28.0, 4.4, 35.2, 6.4), "learned"),
    ("MMLU-Pro 8B", (43.6, 18.0, 6.2, 29.2, 2.9), "scalar"),
    ("MMLU-Pro 32B", (53.4, 16.9, 5.6, 22.0, 2.1), "scalar"),
    ("AIME-90 8B", (0.0, 31.1, 1.1, 67.8, 0.0), "full-budget"),
    ("AIME-90 32B", (2.2, 30.0, 0.0, 67.8, 0.0), "full-budget"),
]


@pytest.mark.parametrize(("name", "shares", "verdict"), PAPER_ROWS, ids=[r[0] for r in PAPER_ROWS])
def test_the_papers_profiles_predict_its_verdicts_with_room(
    name: str, shares: tuple[float, ...], verdict: str
) -> None:
    early, _, _, unsolved, oscillating = (s / 100 for s in shares)
    assert regime(early, unsolved, oscillating) == verdict
    for change in (-0.01, 0.01):  # a point either way in any share changes nothing
        assert regime(max(early + change, 0), unsolved, oscillating) == verdict
        assert regime(early, unsolved + change, oscillating) == verdict
        assert regime(early, unsolved, max(oscillating + change, 0)) == verdict


def test_neither_kind_is_mixed() -> None:
    assert regime(0.2, 0.3, 0.01) == "mixed"
    assert regime(0.7, 0.1, 0.05) == "mixed"


def test_the_profile_counts_and_its_intervals_are_clopper_pearsons() -> None:
    correct = classify_rows([0, 0, 0, 1, 2, 3, 4, 4])
    found = profile(correct, rng=np.random.default_rng(0))
    counts = {name: share.count for name, share in found.shares.items()}
    assert counts == {
        "early_solved": 3,
        "beneficial": 1,
        "harmful": 1,
        "unsolved": 1,
        "oscillating": 2,
    }
    # Recipe: scipy.stats.beta.ppf([.025, .975], [3, 4], [6, 5]) for 3 of 8.
    low, high = stats.beta.ppf(0.025, 3, 6), stats.beta.ppf(0.975, 4, 5)
    assert found.shares["early_solved"].ci95 == pytest.approx((low, high))
    assert sum(s.share for s in found.shares.values()) == pytest.approx(1)
    assert found.n_questions == 8


def classify_rows(kinds: list[int]) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    rows = {0: "1111", 1: "0011", 2: "0110", 3: "0000", 4: "0101"}
    return np.array([[c == "1" for c in rows[k]] for k in kinds])


def test_a_clear_profile_is_stable_and_a_borderline_one_is_not() -> None:
    clear = classify_rows([0] * 700 + [1] * 250 + [3] * 50)
    edge = classify_rows([0] * 30 + [1] * 60 + [3] * 6 + [4] * 4)  # oscillating at the cut-off
    assert profile(clear, rng=np.random.default_rng(0)).stability > 0.99
    assert 0.3 < profile(edge, rng=np.random.default_rng(0)).stability < 0.8


def test_full_thinking_ends_the_trajectory_under_the_natural_reference() -> None:
    table = POPULATIONS[0].draw(50, np.random.default_rng(0))
    natural = trajectory(table)
    assert natural.shape == (50, 11)
    assert np.array_equal(natural[:, -1], table.full_correct)
    assert np.array_equal(natural[:, :-1][~table.ended], table.correct[~table.ended])
    paper = trajectory(table.with_reference("last-checkpoint"))
    assert np.array_equal(paper, table.correct)


def test_too_short_or_no_trajectories_are_refused() -> None:
    with pytest.raises(ProbeError, match="m >= 2"):
        classify(np.ones((3, 1), dtype=bool))
    with pytest.raises(ProbeError, match="at least one question"):
        profile(np.ones((0, 3), dtype=bool), rng=np.random.default_rng(0))
