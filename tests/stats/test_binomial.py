"""Binomial chances against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from stopadvisor.stats.binomial import binomial_mass


@pytest.mark.parametrize("n", [0, 1, 7, 400])
def test_the_chance_of_each_count_is_scipys(n: int) -> None:
    k = np.arange(n + 1)[:, None]
    p = np.array([0.0, 1e-9, 0.05, 0.5, 0.93, 1.0])
    found = binomial_mass(k, n, p)
    np.testing.assert_allclose(found, binom.pmf(k, n, p), rtol=1e-10, atol=1e-300)
    np.testing.assert_allclose(found.sum(axis=0), 1.0, rtol=1e-10)
    some, of = np.array([0, 2, 5]), np.array([5, 4, 5])  # broadcast
    np.testing.assert_allclose(binomial_mass(some, of, np.array([0.3])), binom.pmf(some, of, 0.3))
