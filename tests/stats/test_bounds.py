"""Losses, bounds, multiplicity and sample sizes: against scipy, MAPIE and brute force."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from stopadvisor.ground.errors import CalibrationError
from stopadvisor.stats import bounds
from stopadvisor.stats.bounds import (
    Certified,
    StopCurve,
    labels_needed,
    last_passed,
    max_losses,
    power,
    unspent,
    upper_limit,
)

# --- The stop curve -------------------------------------------------------------------------------


@st.composite
def curves(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    """Scores with many ties, live rows that end anywhere, thresholds on and off the scores."""
    n = draw(st.integers(1, 8))
    m = draw(st.integers(1, 5))
    levels = st.integers(-3, 3).map(float)
    scores = np.array(draw(st.lists(levels, min_size=n * m, max_size=n * m))).reshape(n, m)
    length = np.array(draw(st.lists(st.integers(0, m), min_size=n, max_size=n)))
    live = np.arange(m) < length[:, None]
    points = draw(st.lists(st.integers(-8, 8).map(lambda x: x / 2), min_size=1, unique=True))
    return scores, live, np.sort(np.array(points))[::-1]


def brute_stop(scores: Any, live: Any, threshold: float) -> int:
    """First live checkpoint whose score reaches the threshold, by a loop."""
    for j, score in enumerate(scores.tolist()):
        if live[j] and score >= threshold:
            return j
    return len(scores)


@given(curves(), st.integers(0, 2**32 - 1))
def test_stops_totals_and_properties_are_those_of_a_loop(
    case: tuple[Any, Any, Any], seed: int
) -> None:
    scores, live, thresholds = case
    rng = np.random.default_rng(seed)
    curve = StopCurve.build(scores, live, thresholds)
    values = rng.integers(0, 100, (scores.shape[0], scores.shape[1] + 1))
    blocks = rng.integers(0, 3, len(values))
    total, by_block = curve.totals(values), curve.totals(values, blocks, 3)
    each = curve.each(values < 50)
    assert total.shape == (1, thresholds.size)
    for position, threshold in enumerate(thresholds.tolist()):
        expected = [brute_stop(s, a, threshold) for s, a in zip(scores, live, strict=True)]
        assert curve.stops(position).tolist() == expected
        stopped = values[np.arange(len(values)), expected]
        assert total[0, position] == stopped.sum()
        sums = [stopped[blocks == block].sum() for block in range(3)]
        assert by_block[:, position].tolist() == sums
        assert np.array_equal(each[:, position], stopped < 50)


def test_where_the_trace_is_over_no_score_stops_not_even_nan() -> None:
    curve = StopCurve.build(
        np.array([[0.1, np.nan], [5.0, 9.0]]),
        np.array([[True, False], [False, False]]),
        np.array([7.0, 0.0]),
    )
    assert curve.stops(0).tolist() == [2, 2]
    assert curve.stops(1).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("scores", "thresholds", "message"),
    [
        (np.array([[np.nan]]), np.array([0.0]), "finite"),
        (np.array([[np.inf]]), np.array([0.0]), "finite"),
        (np.array([[0.0]]), np.array([0.0, 0.0]), "strictly descending"),
        (np.array([[0.0]]), np.array([0.0, 1.0]), "strictly descending"),
    ],
    ids=["nan", "infinite", "repeated", "ascending"],
)
def test_impossible_curves_are_refused(scores: Any, thresholds: Any, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        StopCurve.build(scores, np.ones(scores.shape, dtype=bool), thresholds)


# --- Limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "n"), [(0, 30), (2, 59), (11, 200), (30, 30)])
def test_the_exact_limit_is_clopper_pearsons(k: int, n: int) -> None:
    # Recipe: binomtest(k, n, alternative="less").proportion_ci(0.95, method="exact").high
    reference = stats.binomtest(k, n, alternative="less").proportion_ci(0.95, method="exact").high
    assert upper_limit(k, n, 0.05) == pytest.approx(reference, rel=1e-9)


@given(st.integers(1, 300), st.data(), st.floats(0.001, 0.5))
def test_limits_invert_the_exact_test(n: int, data: st.DataObject, delta: float) -> None:
    k = data.draw(st.integers(0, n - 1))
    limit = upper_limit(k, n, delta)
    assert k / n <= limit <= 1
    if limit < 0.999:
        assert stats.binom.cdf(k, n, min(limit * 1.001 + 1e-9, 0.9999)) <= delta + 1e-9
    if k / n < limit * 0.999:
        assert stats.binom.cdf(k, n, limit * 0.999) >= delta - 1e-9


@given(st.integers(1, 400), st.floats(0.005, 0.6), st.floats(1e-6, 0.4))
def test_most_losses_is_the_last_that_passes(n: int, alpha: float, delta: float) -> None:
    passing = np.flatnonzero(stats.binom.cdf(np.arange(n + 1), n, alpha) <= delta)
    assert max_losses(n, alpha, delta) == (int(passing[-1]) if passing.size else -1)


def test_no_question_certifies_nothing_and_one_a_lot() -> None:
    assert max_losses(0, 0.1, 0.05) == -1
    assert max_losses(1, 0.94, 0.05) == -1
    assert max_losses(1, 0.96, 0.05) == 0
    assert max_losses(1, 0.5, 0.5) == 0, "exactly delta is within delta"
    with pytest.raises(CalibrationError, match="alpha"):
        max_losses(10, 1.0, 0.05)


def test_what_whole_losses_leave_of_delta() -> None:
    assert unspent(59, 0.05, 0.05) == pytest.approx(0.05 - 0.95**59)
    assert unspent(58, 0.05, 0.05) == 0.0


# --- Certification --------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 20), max_size=12), st.sampled_from([0.1, 0.2, 0.4]))
def test_the_fixed_sequence_stops_at_the_first_failure(losses: list[int], alpha: float) -> None:
    n, last = 50, -1
    for position, count in enumerate(losses):
        if stats.binom.cdf(count, n, alpha) > 0.05:
            break
        last = position
        assert upper_limit(count, n, 0.05) <= alpha + 1e-9
    assert last_passed(np.array(losses, dtype=int) <= max_losses(n, alpha, 0.05)) == last


def test_what_a_question_counts_on_average_is_less_what_it_gains() -> None:
    lost = Certified(0, 0.5, 0.05, n=10, losses=3, upper=0.4)
    assert (lost.risk, replace(lost, gained=1).risk) == (0.3, 0.2)
    # Three of the four labelled are lost, of eight that differ.
    assert replace(lost, differing=8, planned_labels=4).risk == 0.6
    assert replace(lost, differing=4, planned_labels=8).risk == 0.3, "every one is labelled"
    pairs = replace(lost, both=1, one=1, none=8)
    assert (pairs.traces, pairs.risk) == (2, 0.15)


@pytest.mark.parametrize("change", [{"alpha": 0.0}, {"delta": 1.0}])
def test_impossible_requests_are_refused(change: dict[str, Any]) -> None:
    request: dict[str, Any] = {"alpha": 0.1, "delta": 0.05} | change
    with pytest.raises(CalibrationError, match=next(iter(change))):
        max_losses(50, **request)


# --- Sample size ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "n"), [(0.05, 59), (0.10, 29), (0.15, 19), (0.96, 1)])
def test_with_no_loss_expected_it_is_the_rule_of_three(alpha: float, n: int) -> None:
    # Recipe: smallest n with (1 - alpha)^n <= 0.05.
    assert labels_needed(alpha, 0.05, expected_risk=0.0) == n
    assert (1 - alpha) ** n <= 0.05 < (1 - alpha) ** (n - 1)


def test_power_is_a_sawtooth_and_the_last_tooth_counts() -> None:
    # Measured beforehand: alpha .05 at risk .02 reaches 80 % at 234, but not for good until 286.
    assert power(234, 0.05, 0.05, 0.02) >= 0.8 > power(233, 0.05, 0.05, 0.02)
    assert power(285, 0.05, 0.05, 0.02) < 0.8
    assert power(58, 0.05, 0.05, 0.0) == 0.0, "not even no loss would do"
    assert power(59, 0.05, 0.05, 0.01) == pytest.approx(0.99**59)
    assert labels_needed(0.05, 0.05, expected_risk=0.02) == 286


@settings(max_examples=25)
@given(st.floats(0.03, 0.4), st.floats(0.01, 0.2), st.floats(0, 0.6), st.floats(0.3, 0.95))
def test_the_smallest_such_sample_is_found(
    alpha: float, delta: float, ratio: float, wanted: float
) -> None:
    risk = ratio * alpha
    n = labels_needed(alpha, delta, expected_risk=risk, power_wanted=wanted)
    assert n is not None
    sizes = np.arange(1, 3 * n + 100)
    # The smallest k with cdf >= delta fails unless it hits delta exactly.
    most = stats.binom.ppf(delta, sizes, alpha)
    most -= stats.binom.cdf(most, sizes, alpha) > delta
    reached = stats.binom.cdf(most, sizes, risk) >= wanted
    assert reached[n - 1 :].all()
    assert n == 1 or not reached[n - 2]


@pytest.mark.parametrize("risk", [0.1, 0.3])
def test_no_sample_certifies_a_risk_that_is_not_below_alpha(risk: float) -> None:
    assert labels_needed(0.1, 0.05, expected_risk=risk) is None
    assert labels_needed(0.1, 0.9, expected_risk=risk) is None, "however little is asked"


def test_more_than_a_million_is_no_number() -> None:
    assert labels_needed(0.1, 0.05, expected_risk=0.0999) is None


@pytest.mark.parametrize(("risk", "needed"), [(0.0475, 59_201), (0.0493, 759_327)])
def test_large_sizes_are_searched_for(
    risk: float, needed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def counted(n: int, alpha: float, delta: float) -> int:
        tried.append(n)
        return max_losses(n, alpha, delta)

    monkeypatch.setattr(bounds, "max_losses", counted)
    assert labels_needed(0.05, 0.025, expected_risk=risk) == needed
    assert len(tried) < 5000
    assert power(needed, 0.05, 0.025, risk) >= 0.8 > power(needed - 1, 0.05, 0.025, risk)
    beyond = np.unique(np.geomspace(needed, 1_000_000, 200).astype(int))
    assert min(power(int(n), 0.05, 0.025, risk) for n in beyond) >= 0.8


def test_teeth_beyond_the_first_generous_size_are_seen() -> None:
    assert labels_needed(0.02, 0.3, expected_risk=0.01, power_wanted=0.5) == 180
    assert power(179, 0.02, 0.3, 0.01) < 0.5


def test_impossible_risks_are_refused() -> None:
    with pytest.raises(CalibrationError, match="expected risk"):
        labels_needed(0.1, 0.05, expected_risk=-0.1)
    with pytest.raises(CalibrationError, match="expected risk"):
        labels_needed(0.1, 0.05, expected_risk=1.0)
