"""Binomial chances against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from stopadvisor.stats.binomial import binomial_mass, binomial_tail


@pytest.mark.parametrize("n", [0, 1, 7, 400])
def test_the_chance_of_each_count_is_scipys(n: int) -> None:
    k = np.arange(n + 1)[:, None]
    p = np.array([0.0, 1e-9, 0.05, 0.5, 0.93, 1.0])
    found = binomial_mass(k, n, p)
    np.testing.assert_allclose(found, binom.pmf(k, n, p), rtol=1e-10, atol=1e-300)
    np.testing.assert_allclose(found.sum(axis=0), 1.0, rtol=1e-10)
    some, of = np.array([0, 2, 5]), np.array([5, 4, 5])  # broadcast
    np.testing.assert_allclose(binomial_mass(some, of, np.array([0.3])), binom.pmf(some, of, 0.3))


@pytest.mark.parametrize("n", [1, 7, 80, 371, 20_000, 1_000_000])
@pytest.mark.parametrize("p", [1e-6, 0.003, 0.05, 0.15, 0.5, 0.97])
def test_the_tail_is_scipy_s(n: int, p: float) -> None:
    for k in {0, 1, n // 100, int(0.9 * n * p), int(n * p), min(n, int(1.1 * n * p) + 1), n - 1, n}:
        expected = float(binom.cdf(k, n, p))
        assert binomial_tail(k, n, p) == pytest.approx(expected, rel=1e-7, abs=1e-290), (k, n, p)


def test_the_tail_at_its_ends() -> None:
    assert [binomial_tail(-1, 5, 0.1), binomial_tail(5, 5, 0.1), binomial_tail(2, 5, 0.0)] == [
        *(0.0, 1.0, 1.0)
    ]
    assert binomial_tail(2, 5, 1.0) == 0.0
    for n in range(1, 60):
        assert binomial_tail(n, n, 0.1) == 1.0
        assert max(binomial_tail(k, n, 0.1) for k in range(n)) <= 1.0
