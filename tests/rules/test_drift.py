"""Drift: distances against scipy, Holm by hand, familywise false alarms, power."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stopadvisor.ground.errors import ProbeError
from stopadvisor.rules.drift import DRIFT_FEATURES, feature_drift, holm, question_features
from stopadvisor.rules.features import feature_array
from tests.populations import POPULATIONS, with_own_positions

MIXED = POPULATIONS[0]
SCHEDULE = (0, 3, 6, 9)


def sample(n: int, rng: np.random.Generator) -> np.ndarray:
    return question_features(MIXED.draw(n, rng).select(SCHEDULE))


def test_distances_are_scipys(rng: np.random.Generator) -> None:
    before, after = sample(60, rng), sample(45, rng)  # with ties: votes, runs, positions
    found = feature_drift(before, after, permutations=1, rng=rng)
    for k, row in enumerate(found):
        assert row.feature == DRIFT_FEATURES[k]
        expected = stats.ks_2samp(before[:, k].round(12), after[:, k].round(12)).statistic
        assert row.distance == pytest.approx(expected)


@pytest.mark.slow
def test_p_values_are_those_of_a_permutation_test(rng: np.random.Generator) -> None:
    before, after = sample(30, rng), sample(25, rng) + 0.05
    found = feature_drift(before, after, permutations=2000, rng=rng)
    k = DRIFT_FEATURES.index("answer_entropy")
    assert np.unique([*before[:, k], *after[:, k]]).size == 55, "no ties"
    first = rng.permuted(np.tile(np.arange(55) < 30, (1000, 1)), axis=1)
    distances = np.abs(np.where(first, 1 / 30, -1 / 25).cumsum(axis=1)).max(axis=1)
    observed = stats.ks_2samp(before[:, k], after[:, k]).statistic
    assert found[k].p_value == pytest.approx((distances >= observed - 1e-9).mean(), abs=0.05)


def test_features_are_means_over_live_checkpoints(rng: np.random.Generator) -> None:
    table = MIXED.draw(40, rng)
    ends_at_once = replace(table, trace_tokens=np.where(np.arange(40) == 7, 0, table.trace_tokens))
    found = question_features(ends_at_once.select(SCHEDULE))
    assert found.shape == (39, len(DRIFT_FEATURES))
    whole = feature_array(table.select(SCHEDULE), DRIFT_FEATURES)
    live = [j for j, column in enumerate(SCHEDULE) if not table.ended[3, column]]
    assert found[3] == pytest.approx(whole[3, live].mean(axis=0))


def test_each_question_counts_its_own_probes(rng: np.random.Generator) -> None:
    table = with_own_positions(MIXED.draw(30, rng), rng)
    found = question_features(table)
    kept = np.flatnonzero(table.live.any(axis=1))
    assert len(found) == kept.size < 30
    for row, i in zip(found, kept.tolist(), strict=True):
        live = np.flatnonzero(table.live[i])
        assert row[0] == pytest.approx(table.positions[i, live].mean())
        assert row[1] == pytest.approx(table.mean_logprob[i, live].mean())


def test_what_was_not_recorded_counts_as_nothing(rng: np.random.Generator) -> None:
    table = MIXED.draw(20, rng)
    silent = replace(table, mean_logprob=np.full(table.mean_logprob.shape, np.nan))
    found = question_features(silent)
    assert np.isfinite(found).all()
    assert (found[:, DRIFT_FEATURES.index("answer_logprob")] == 0).all()


def test_holm_by_hand() -> None:
    # Recipe: sorted 0.01, 0.02, 0.03, 0.5 times 4, 3, 2, 1; never falling; at most 1.
    assert holm(np.array([0.02, 0.5, 0.01, 0.03])).tolist() == [0.06, 0.5, 0.04, 0.06]
    assert holm(np.array([0.9, 0.8])).tolist() == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_holm_lies_between_nothing_and_bonferroni(values: list[float]) -> None:
    p = np.array(values)
    adjusted = holm(p)
    assert (adjusted >= p).all()
    assert (adjusted <= np.minimum(1, p * len(p)) + 1e-12).all()
    order = np.argsort(p, kind="stable")
    assert (np.diff(adjusted[order]) >= 0).all()


@pytest.mark.slow
def test_without_drift_alarms_are_rare(rng: np.random.Generator) -> None:
    """200 pairs: familywise at 5 %, with three standard errors of room."""
    alarms = 0
    names = DRIFT_FEATURES[:3]  # 79 permutations are enough to find a drift among three
    for rows in sample(200 * 90, rng)[:, :3].reshape(200, 90, 3):
        found = feature_drift(rows[:50], rows[50:], names, permutations=79, rng=rng)
        alarms += min(row.adjusted_p for row in found) < 0.05
    assert alarms / 200 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


@pytest.mark.parametrize("feature", ["answer_entropy", "marker_density", "vote_share"])
def test_a_real_shift_is_seen_where_it_is(feature: str, rng: np.random.Generator) -> None:
    before, after = sample(200, rng), sample(150, rng)
    k = DRIFT_FEATURES.index(feature)
    after[:, k] += 0.8 * before[:, k].std()
    found = feature_drift(before, after, rng=rng)
    adjusted = holm(np.array([row.p_value for row in found]))
    assert [row.adjusted_p for row in found] == adjusted.tolist()
    assert found[k].adjusted_p < 0.05
    others = [row for row in found if row.feature != feature]
    assert min(row.adjusted_p for row in others) >= 0.05


def test_large_samples_are_drawn_from(rng: np.random.Generator) -> None:
    found = feature_drift(sample(2100, rng), sample(50, rng), permutations=20, rng=rng)
    # A distance of two empirical distributions is a multiple of 1 / lcm(2000, 50).
    assert all(abs(row.distance * 2000 - round(row.distance * 2000)) < 1e-6 for row in found)


def test_nothing_to_compare(rng: np.random.Generator) -> None:
    rows = sample(5, rng)
    assert feature_drift(rows, rows[:0], rng=rng) == ()
    with pytest.raises(ProbeError, match="7 features"):
        feature_drift(rows[:, :3], rows, rng=rng)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20)
