"""The exact test of a drop: its probabilities, its size between grid points, its power."""

from __future__ import annotations

import math
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from scipy import optimize, stats

from stopadvisor.ground.arrays import BoolArray, IntArray
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.stats import trinomial
from stopadvisor.stats.trinomial import (
    drop_limit,
    drop_passes,
    drop_power,
    drop_size,
    limit_of_pairs,
    most_lost,
    risk_of_pairs,
)


def rejects(most: IntArray, lost: IntArray, gained: IntArray) -> BoolArray:
    return lost <= most[gained]


def outcomes(n: int) -> tuple[IntArray, IntArray]:
    """Every pair of lost and gained among n."""
    lost, gained = (a.ravel() for a in np.meshgrid(np.arange(n + 1), np.arange(n + 1)))
    inside = lost + gained <= n
    return lost[inside], gained[inside]


def chance(most: IntArray, n: int, lost: float, gained: float) -> float:
    """Of a rejection, summed over all outcomes by another library."""
    found = [counts for counts in zip(*outcomes(n), strict=True) if counts[0] <= most[counts[1]]]
    rows = np.array([(a, b, n - a - b) for a, b in found]).reshape(-1, 3)
    if not rows.size:
        return 0.0
    shares = [lost, gained, max(0.0, 1 - lost - gained)]
    return float(stats.multinomial.pmf(rows, n, np.array(shares) / sum(shares)).sum())


SHARES = st.floats(0, 1).flatmap(lambda a: st.tuples(st.just(a), st.floats(0, 1 - a)))
LIMITS = st.sampled_from([-0.3, -0.05, 0.02, 0.1, 0.3])


@pytest.mark.slow
@given(st.integers(1, 14), LIMITS, SHARES)
@settings(max_examples=60)
def test_power_is_the_sum_over_all_outcomes(
    n: int, alpha: float, shares: tuple[float, float]
) -> None:
    expected = chance(most_lost(n, alpha, 0.2), n, *shares)
    assert drop_power(n, alpha, 0.2, *shares) == pytest.approx(expected, abs=1e-9)


@pytest.mark.slow
@given(st.integers(1, 60), LIMITS, st.sampled_from([0.01, 0.05, 0.2]), st.tuples(*[SHARES] * 4))
@settings(max_examples=40)
def test_no_mean_of_alpha_or_more_is_rejected_more_often_than_delta(
    n: int, alpha: float, delta: float, tried: tuple[tuple[float, float], ...]
) -> None:
    for lost, gained in tried:  # of one test, which takes the time
        if lost - gained < alpha:  # moved to a mean of alpha
            lost = min(gained + alpha, 1.0)
            gained = min(lost - alpha, 1 - lost)
        if lost - gained >= alpha - 1e-12 and min(lost, gained) >= 0:
            assert drop_power(n, alpha, delta, lost, gained) <= delta


@pytest.mark.parametrize(
    ("n", "alpha", "delta", "most"),
    [
        (12, 0.3, 0.2, [1, 2, 3, 3, 4, 5, 5, 5, 4, 3, 2, 1, 0]),
        (12, -0.3, 0.2, [-1, -1, -1, -1, -1, -1, 0, 0, 1, 2, 2, 1, 0]),
        (20, 0.1, 0.1, [-1, 0, 1, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 7, 6, 5, 4, 3, 2, 1, 0]),
        (2, 0.5, 0.3, [0, 0, 0]),
        (1, 0.5, 0.5, [-1, 0]),
    ],
)
def test_reference_values(n: int, alpha: float, delta: float, most: list[int]) -> None:
    """Of a slow program: the largest region of Tango's score whose size is at most delta.

    The share gained under the null is searched for on the likelihood, the region widened step by
    step until it is monotone, and its size summed over all outcomes on a grid of 400 shares.
    """
    found = most_lost(n, alpha, delta)
    assert found.tolist() == most
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 0


@pytest.mark.parametrize("alpha", [0.25, 0.02, -0.3])
@pytest.mark.parametrize(
    ("lost", "gained", "n"),
    [(8, 0, 20), (0, 8, 20), (0, 0, 9), (3, 9, 40), (6, 14, 20), (5, 2, 90)],
)
def test_the_score_is_that_of_a_likelihood_maximised_numerically(
    lost: int, gained: int, n: int, alpha: float
) -> None:
    def unlikely(share: float) -> float:
        cells = [(lost, share + alpha), (gained, share), (n - lost - gained, 1 - 2 * share - alpha)]
        return -float(sum(count * math.log(max(p, 1e-300)) for count, p in cells if count))

    bounds = (max(0.0, -alpha), (1 - alpha) / 2)
    share = optimize.minimize_scalar(unlikely, bounds=bounds, options={"xatol": 1e-12}).x
    spread = math.sqrt(n * (2 * share + alpha - alpha**2))
    found = float(trinomial._score(np.array([lost]), np.array([gained]), n, alpha)[0])
    assert found == pytest.approx((lost - gained - n * alpha) / spread, rel=1e-4)


@pytest.mark.parametrize("n", [1, 7, 30])
def test_chances_of_any_shares_are_those_of_another_library(n: int) -> None:
    """One by one and together, where a range of counts has to do for all."""
    shares = [0.0, 1e-4, 0.02, 0.3, 0.5, 0.7, 0.98, 1.0]
    pairs = [(a, b) for a in shares for b in shares if 0 < a + b <= 1]
    lost, gained = np.array(pairs).T
    for alpha, critical in ((0.1, -1.0), (-0.3, 0.4)):
        most = trinomial._region(n, alpha, critical)
        by_gained = [max((k for k in range(n - g + 1) if k <= most[k + g]), default=-1)
                     for g in range(n + 1)]  # fmt: skip
        expected = [chance(np.array(by_gained), n, *pair) for pair in pairs]
        assert trinomial._chance(most, lost, gained) == pytest.approx(expected, abs=1e-10)
        alone = [trinomial._chance(most, lost[k : k + 1], gained[k : k + 1])[0] for k in range(30)]
        assert alone == pytest.approx(expected[:30], abs=1e-10)


@pytest.mark.parametrize("n", [1, 30, 20_000])
@pytest.mark.parametrize(
    "shares", [[0.0], [1e-4], [0.3], [0.4, 0.45], [0.4, 0.6], [0.6, 0.9], [0.52], [0.53], [1.0]]
)
def test_counts_out_of_range_are_as_good_as_impossible(n: int, shares: list[float]) -> None:
    first, last = trinomial._likely(n, np.array(shares))
    assert 0 <= first <= last <= n
    for share in shares:
        assert stats.binom.cdf(first - 1, n, share) < 1e-16
        assert stats.binom.sf(last, n, share) < 1e-16


@pytest.mark.parametrize(
    ("n", "alpha", "critical"),
    [
        *((12, alpha, None) for alpha in (0.3, -0.3)),  # as it is tested at a level of 0.2
        # Its chance is highest at an end, near one, or between; with one question, at a corner.
        *((1, alpha, critical) for alpha in (0.3, -0.3) for critical in (-1.0, 0.5)),
        (2, 0.3, 2.0), (5, 0.3, -3.0), (5, -0.3, 0.5), (12, 0.3, -0.5), (12, 0.05, 0.5),
        (12, -0.05, 0.5), (40, -0.05, -1.5), (40, 0.05, -0.5),
    ],
)  # fmt: skip
def test_the_bound_between_grid_points_is_that_of_the_notes(
    n: int, alpha: float, critical: float | None
) -> None:
    """With the quadratic inequality solved by numpy."""
    if critical is None:
        most = trinomial._test(n, alpha, 0.2)
    else:
        most = trinomial._region(n, alpha, critical)
    top, points = (1 - abs(alpha)) / 2, math.ceil(math.pi / 2 * math.sqrt(n) / 0.037)
    shares = top * np.sin(np.linspace(0, math.pi / 2, points)) ** 2
    shares[0], shares[-1] = shares[1] / 2, (shares[-2] + top) / 2
    lost, gained = max(alpha, 0.0), max(-alpha, 0.0)
    at = trinomial._chance(most, shares + lost, shares + gained)
    ends = np.array([[lost, shares[0] + gained], [shares[-1] + lost, top + gained]])
    bounds = trinomial._chance(most, *ends.T).tolist()
    for k, (left, right) in enumerate(pairwise(shares)):
        information = 1 / (left + lost) + 1 / (left + gained) + 2 / (top - right)
        curvature = (right - left) ** 2 / 8 * math.sqrt(2 * n * (n - 1)) * information
        bounds.append(max(np.roots([1, -curvature, -max(at[k : k + 2])])) ** 2)
    assert drop_size(most, alpha) == pytest.approx(min(max(bounds), 1.0), abs=2e-9)


def test_a_level_below_all_rounding_rejects_nothing() -> None:
    assert most_lost(12, 0.3, 1e-12).tolist() == [-1] * 13
    assert drop_power(12, 0.3, 1e-12, 0.0, 0.9) == 0.0
    with pytest.raises(ValueError, match="read-only"):
        trinomial._test(12, 0.3, 1e-12)[0] = 0


def test_the_power_where_no_reply_changes() -> None:
    certain = [drop_power(n, alpha, 0.2, 0.0, 0.0) for n, alpha in ((12, 0.3), (12, -0.3))]
    assert [*certain, drop_power(2, 0.5, 0.3, 0.0, 0.0)] == [1.0, 0.0, 1.0]
    assert drop_power(1, 0.5, 0.5, 0.0, 0.0) == 0.0, "its only question must be gained"


def test_the_limit_of_pairs_is_that_of_both_less_none() -> None:
    assert [limit_of_pairs(alpha) for alpha in (0.15, 0.75)] == pytest.approx([-0.7, 0.5])
    assert -1e-6 < limit_of_pairs(0.5) < 0, "the test cannot take 0"
    assert -47 / 60 < drop_limit(3, 50, 60, 0.05) < -0.6
    assert risk_of_pairs(3, 50, 60, 0.05) == (drop_limit(3, 50, 60, 0.05) + 1) / 2
    assert risk_of_pairs(60, 0, 60, 0.05) == 1.0 == drop_limit(60, 0, 60, 0.05)


@pytest.mark.parametrize(("n", "alpha"), [(12, 0.1), (75, 0.05), (240, 0.02), (240, -0.02)])
def test_the_size_is_bounded_between_grid_points_and_hardly_above(n: int, alpha: float) -> None:
    most = trinomial._test(n, alpha, 0.05)
    top = (1 - abs(alpha)) / 2
    fine = np.concatenate([np.geomspace(1e-9, top, 2000), np.linspace(0, top, 2000)])
    found = trinomial._chance(most, fine + max(alpha, 0.0), fine + max(-alpha, 0.0))
    assert found.max() <= drop_size(most, alpha) <= min(0.05, found.max() + 6e-4)


@pytest.mark.slow
@given(st.integers(1, 80), LIMITS, st.lists(st.floats(-4, 1), min_size=3, max_size=3))
@settings(max_examples=30)
def test_with_less_lost_or_more_gained_the_test_still_rejects(
    n: int, alpha: float, critical: list[float]
) -> None:
    for region in (trinomial._region(n, alpha, each) for each in critical):
        assert set(np.diff(region).tolist()) <= {0, 1}
        assert (region <= np.arange(n + 1)).all()
    found = most_lost(n, alpha, 0.05)
    room = n - np.arange(n + 1)  # what is gained cannot be lost
    assert (found[1:] >= np.minimum(found[:-1], room[1:])).all()


def test_without_gains_it_is_nearly_the_exact_binomial_and_never_more() -> None:
    binomial = stats.binom.cdf(np.arange(20), 200, 0.05)
    assert most_lost(200, 0.05, 0.05)[0] in ((binomial <= 0.05).sum() - 1, (binomial <= 0.05).sum())


def test_its_power_adapts_to_how_few_replies_change() -> None:
    """At 1 % lost and 1 % gained: what a test that knows only the range 2 can never show."""
    n, alpha, delta, draws = 240, 0.02, 0.05, 4000
    rng = np.random.default_rng(15)
    lost, gained, _ = rng.multinomial(n, [0.01, 0.01, 0.98], draws).T
    exact = rejects(most_lost(n, alpha, delta), lost, gained).mean()
    assert exact == pytest.approx(drop_power(n, alpha, delta, 0.01, 0.01), abs=0.02)
    assert exact > 0.52


@pytest.mark.slow
@given(st.integers(2, 90), st.data())
@settings(max_examples=40)
def test_the_limit_is_where_the_test_begins_to_pass(n: int, data: st.DataObject) -> None:
    lost = data.draw(st.integers(0, n // 2))
    gained = data.draw(st.integers(0, n // 2))
    limit = drop_limit(lost, gained, n, 0.05)
    assert (lost - gained) / n < limit <= 1
    if 0 < limit < 0.99:
        assert drop_passes(lost, gained, n, limit, 0.05)
        assert not drop_passes(lost, gained, n, limit - 3e-4, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "gained", "n"), [(0, 99, 100), (0, 198, 200), (1, 199, 200)])
def test_a_search_for_the_limit_steps_over_0(lost: int, gained: int, n: int) -> None:
    """Between -.99 and .99, where it begins, lies 0, which the test refuses."""
    limit = drop_limit(lost, gained, n, 0.05)
    assert drop_passes(lost, gained, n, limit, 0.05)
    assert not drop_passes(lost, gained, n, limit - 5e-4, 0.05)
    assert (lost - gained) / n < limit < -0.9


def test_a_quick_no_is_a_no() -> None:
    for gained in (0, 3, 17):
        most = int(most_lost(120, 0.05, 0.05)[gained])
        tried = [*range(most + 5), 39]  # beyond these counts both say no
        quick = [drop_passes(k, gained, 120, 0.05, 0.05, quick=True) for k in tried]
        exact = [drop_passes(k, gained, 120, 0.05, 0.05) for k in tried]
        assert all(q or not e for q, e in zip(quick, exact, strict=True))
        assert sum(quick) - sum(exact) <= 1
        assert sum(exact) - 1 == most


@pytest.mark.parametrize(
    ("n", "alpha", "delta", "said"),
    [
        (0, 0.1, 0.05, "takes 1 to 20000 questions, got 0"),
        (20_001, 0.1, 0.05, "takes 1 to 20000 questions, got 20001"),
        (10, 1.0, 0.05, r"alpha must be in \(-1, 1\) and not 0, got 1.0"),
        (10, -1.0, 0.05, r"alpha must be in \(-1, 1\) and not 0, got -1.0"),
        (10, 0.0, 0.05, r"alpha must be in \(-1, 1\) and not 0, got 0.0"),
        (10, 0.1, 1.0, r"delta must be in \(0, 1\), got 1.0"),
        (10, 0.1, 0.0, r"delta must be in \(0, 1\), got 0.0"),
    ],
)
def test_values_out_of_range_are_refused(n: int, alpha: float, delta: float, said: str) -> None:
    with pytest.raises(CalibrationError, match=said):
        most_lost(n, alpha, delta)
    trinomial._check(trinomial.MOST_QUESTIONS, 0.1, 0.05)
