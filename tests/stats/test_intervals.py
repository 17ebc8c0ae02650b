"""Intervals for counts: reference values, brute-force likelihood, coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from stopadvisor.ground.errors import CalibrationError
from stopadvisor.stats.intervals import exact_interval, paired_difference


def test_the_exact_interval_holds_what_two_binomial_tests_admit() -> None:
    low, high = exact_interval(3, 40)
    assert stats.binom.sf(2, 40, low) == pytest.approx(0.025)
    assert stats.binom.cdf(3, 40, high) == pytest.approx(0.025)
    assert exact_interval(0, 5)[0] == 0.0
    assert exact_interval(5, 5)[1] == 1.0
    assert exact_interval(1, 1) == pytest.approx((0.025, 1))


def test_the_paired_interval_against_r() -> None:
    # Recipe: PropCIs::scoreci.mp(25, 28, 618, conf.level = 0.90) gives -0.0148, 0.0247.
    low, high = paired_difference(28, 25, 618, level=0.90)
    assert (round(low, 4), round(high, 4)) == (-0.0148, 0.0247)


@pytest.mark.parametrize(
    ("gains", "losses", "n"),
    [(12, 2, 50), (0, 5, 100), (5, 0, 60), (3, 3, 6), (1, 9, 10), (0, 9, 62)],
)
def test_the_paired_interval_against_a_likelihood_maximised_numerically(
    gains: int, losses: int, n: int
) -> None:
    """Tango's score with the nuisance share found by search instead of the closed form."""

    def log_likelihood(q: float, difference: float) -> float:
        cells = [(gains, q + difference), (losses, q), (n - gains - losses, 1 - 2 * q - difference)]
        return float(sum(count * np.log(max(p, 1e-300)) for count, p in cells if count))

    for limit, sign in zip(paired_difference(gains, losses, n), (1, -1), strict=True):
        bounds = (max(0.0, -limit), (1 - limit) / 2)
        q = optimize.minimize_scalar(
            lambda q, d=limit: -log_likelihood(q, d), bounds=bounds, options={"xatol": 1e-12}
        ).x
        spread = np.sqrt((2 * q + limit * (1 - limit)) / n)
        z = ((gains - losses) / n - limit) / spread
        assert z == pytest.approx(sign * 1.959964, abs=2e-3)


@given(st.data())
def test_the_paired_interval_is_an_interval(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 400))
    gains = data.draw(st.integers(0, n))
    losses = data.draw(st.integers(0, n - gains))
    low, high = paired_difference(gains, losses, n)
    assert -1 <= low <= (gains - losses) / n <= high <= 1
    assert low < high
    mirrored = paired_difference(losses, gains, n)
    assert mirrored == pytest.approx((-high, -low), abs=1e-8)
    wider = paired_difference(gains, losses, n, level=0.99)
    assert wider[0] <= low + 1e-9
    assert high <= wider[1] + 1e-9


@pytest.mark.parametrize(
    ("gain", "loss", "n"), [(0.02, 0.05, 60), (0.01, 0.01, 36), (0.1, 0.1, 80)]
)
def test_the_paired_interval_covers(gain: float, loss: float, n: int) -> None:
    """Exact coverage by enumeration, in cells where a bootstrap often gives a point."""
    found = 0.0
    for gains in range(n + 1):
        for losses in range(n - gains + 1):
            p = float(
                stats.multinomial.pmf(
                    [gains, losses, n - gains - losses], n, [gain, loss, 1 - gain - loss]
                )
            )
            if p > 1e-9:
                low, high = paired_difference(gains, losses, n)
                found += p * (low <= gain - loss <= high)
    assert found >= 0.93


@pytest.mark.parametrize("counts", [(-1, 0, 5), (3, 3, 5), (0, 0, 0)])
def test_impossible_counts_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(CalibrationError, match="gains"):
        paired_difference(*counts)
    with pytest.raises(CalibrationError, match="a share needs"):
        exact_interval(4, 3)
