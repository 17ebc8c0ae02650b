"""Question-level resampling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopadvisor.stats.bootstrap import MOST_BLOCKS, block_sums, interval, resample_counts


@given(st.integers(1, 40), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_every_resample_draws_as_many_units_as_there_are(n: int, resamples: int, seed: int) -> None:
    counts = resample_counts(n, resamples, rng=np.random.default_rng(seed))
    assert counts.shape == (resamples, n)
    assert (counts >= 0).all()
    assert (counts.sum(axis=1) == n).all()


def test_counts_are_those_of_the_drawn_rows() -> None:
    # Recipe: the same generator's draws, counted row by row.
    draws = np.random.default_rng(5).integers(7, size=(30, 7))
    expected = [np.bincount(row, minlength=7).tolist() for row in draws]
    assert resample_counts(7, 30, rng=np.random.default_rng(5)).tolist() == expected


def test_the_interval_is_numpys_percentiles() -> None:
    values = np.random.default_rng(0).standard_normal(1001)
    found = interval(values)
    low, median, high = np.percentile(values, [2.5, 50, 97.5])
    assert (found.low, found.median, found.high) == pytest.approx((low, median, high))
    assert interval(values, 0.5).low > found.low


def test_the_bootstrap_of_a_mean_has_its_standard_error() -> None:
    values = np.random.default_rng(1).exponential(size=400)
    counts = resample_counts(400, 4000, rng=np.random.default_rng(2)).astype(float)
    spread = (counts @ values / 400).std()
    assert spread == pytest.approx(values.std() / 20, rel=0.05)


def test_few_units_are_their_own_blocks() -> None:
    values = np.random.default_rng(3).random((50, 2))
    assert np.array_equal(block_sums(values), values)
    units = np.repeat(np.arange(25), 2)
    assert block_sums(values, units) == pytest.approx(values.reshape(25, 2, 2).sum(axis=1))


@pytest.mark.parametrize("n", [MOST_BLOCKS, MOST_BLOCKS + 1, 3 * MOST_BLOCKS + 7])
def test_many_units_are_mixed_evenly_into_blocks(n: int) -> None:
    values = np.column_stack([np.ones(n), np.arange(n)]).astype(float)
    found = block_sums(values)
    assert len(found) == MOST_BLOCKS
    assert found.sum(axis=0) == pytest.approx(values.sum(axis=0))
    assert np.ptp(found[:, 0]) <= 1
