"""Detecting a change of traffic: false alarms are rare, true ones come soon."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from stopadvisor.stats.exchangeability import ExchangeabilityTest, coarse


def highest(test: ExchangeabilityTest, values: list[int], rng: np.random.Generator) -> float:
    found = 0.0
    for value, tie in zip(values, rng.random(len(values)).tolist(), strict=True):
        test.update(value, tie)
        found = max(found, test.capital)
    return found


def test_false_alarms_are_rare_for_ever() -> None:
    rng = np.random.default_rng(0)
    streams, delta = 100, 0.1
    alarms = sum(
        highest(
            ExchangeabilityTest(rng.integers(10, 200, 200).tolist()),
            rng.integers(10, 200, 2_000).tolist(),
            rng,
        )
        >= 1 / delta
        for _ in range(streams)
    )
    assert alarms <= stats.binom.ppf(0.999, streams, delta)


def test_a_change_is_found_and_capital_stays_finite() -> None:
    rng = np.random.default_rng(1)
    for shift in (-8, 40):
        test = ExchangeabilityTest(rng.integers(10, 200, 300).tolist())
        assert highest(test, rng.integers(10, 200, 1_500).tolist(), rng) < 1e3
        assert highest(test, rng.integers(10 + shift, 200 + 2 * shift, 20_000).tolist(), rng) > 1e6
        assert test.capital < 1e13


def test_a_state_goes_on() -> None:
    test = ExchangeabilityTest([1.0, 5.0, 5.0])
    test.update(7.0, 0.25)
    other = ExchangeabilityTest.restore(json.loads(json.dumps(test.state())))
    test.update(-1.0, 0.5)
    other.update(-1.0, 0.5)
    assert other.capital == test.capital


@pytest.mark.parametrize("grows", [False, True])
def test_the_capital_is_the_simple_jumpers(grows: bool) -> None:
    """Bet by bet on ranks that are counted, as the page says: a hundredth changes sides.

    What is above 1e12 is given away, by all bets alike.
    """
    rng = np.random.default_rng(2)
    reference, values = rng.integers(0, 40, 50).tolist(), rng.integers(5, 60, 200).tolist()
    values = [50 * 1.15**k for k in range(200)] if grows else values
    test, seen, bets = ExchangeabilityTest(reference), [*map(coarse, reference)], np.full(3, 1 / 3)
    assert test.capital == 1.0
    for value, tie in zip(values, rng.random(200).tolist(), strict=True):
        level = coarse(value)
        seen.append(level)
        larger, equal = (np.array(seen) > level).sum(), (np.array(seen) == level).sum()
        p = (larger + tie * equal) / len(seen)
        bets *= min(1.0, 1e12 / bets.sum())
        bets = (0.99 * bets + 0.01 * bets.sum() / 3) * (1 + np.array([-1, 0, 1]) * (p - 0.5))
        assert test.update(value, tie) == test.capital == pytest.approx(bets.sum(), rel=1e-12)
    assert (test.capital > 1e12) is grows


def test_the_scale_keeps_the_order() -> None:
    values = [-300.0, -1.0, -0.1, -0.001, 0.0, 0.001, 0.1, 0.5, 1.0, 7.0, 8.0, 4_000.0]
    scaled = [coarse(value) for value in values]
    assert scaled == sorted(scaled)
    assert [level for level in scaled if level == 0] == [coarse(0.0)], "zero stands alone"
    assert coarse(100.0) != coarse(112.0)
    assert [coarse(value) for value in (-3.0, -1.0, 0.0, 1.0, 3.0)] == [-17, -9, 0, 9, 17]
