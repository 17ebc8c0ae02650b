"""Resamples: the lower limit where no loss is allowed, and where nothing is feasible."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stopadvisor.assessment.limits import FitLimits
from stopadvisor.assessment.rated import Resamples, choice_noise, compare, saving_lower
from stopadvisor.assessment.sequences import FitData, ThresholdSequence
from stopadvisor.ground.arrays import FloatArray
from stopadvisor.rules.losses import LOST
from stopadvisor.rules.schedules import GridSchedule
from stopadvisor.stats.intervals import Interval, resample_counts
from tests.populations import POPULATIONS, fit_data
from tests.populations import sequence as scored

CLEAR = replace(POPULATIONS[0], signal=5.0)
"""Confidence tells right from wrong so well that even without a loss much is saved."""
N = 120
RESAMPLES = 40


@pytest.fixture(scope="module")
def fit() -> FitData:
    return fit_data(CLEAR.draw(N, np.random.default_rng(1)))


@pytest.fixture(scope="module")
def sequence(fit: FitData) -> ThresholdSequence:
    return scored(fit, "confidence", GridSchedule(CLEAR.budgets))


def most(limit: float) -> FitLimits:
    """Allow this many of the fit questions to be lost."""
    return FitLimits((np.array([limit]),), (float(N),))


def lower_by_hand(fit: FitData, sequence: ThresholdSequence, limit: float) -> float:
    """One resample after the other: threshold chosen on those drawn, saving of the others."""
    lost, savings = LOST.of(sequence.view), []
    costs = fit.costs(sequence.scorer, sequence.view)
    rows = np.arange(N)
    stops = [sequence.curve.stops(k) for k in range(sequence.thresholds.size)]
    for drawn in resample_counts(N, RESAMPLES, rng=np.random.default_rng(N)):
        chosen = fit.full_cost
        for at in stops:
            if drawn @ lost[rows, at] > limit * drawn.sum() / N + 1e-6:
                break
            reached = costs[rows, at]
            chosen = reached if drawn @ reached < drawn @ fit.full_cost else fit.full_cost
        outside = drawn == 0
        savings.append(100 * (1 - chosen[outside].sum() / fit.full_cost[outside].sum()))
    return float(np.quantile(savings, 0.05))


@pytest.mark.parametrize("limit", [0.0, 1.0, 6.5])
def test_the_lower_limit_is_that_of_the_recipe(
    fit: FitData, sequence: ThresholdSequence, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no loss is allowed too: every resample still has the thresholds that lose none."""
    monkeypatch.setattr("stopadvisor.assessment.rated._RESAMPLES", RESAMPLES)
    found = saving_lower(Resamples.of(fit, most(limit)), [sequence])
    assert found == pytest.approx(lower_by_hand(fit, sequence, limit), abs=1e-3)
    assert found > 0


def test_where_nothing_can_be_certified_nothing_is_saved(
    fit: FitData, sequence: ThresholdSequence
) -> None:
    assert saving_lower(Resamples.of(fit, most(-1.0)), [sequence]) == 0.0
    assert saving_lower(Resamples.of(fit, most(3.0)), []) == 0.0
    assert compare(Resamples.of(fit, most(3.0)), [sequence], []) == ("inconclusive", None)
    verdict, spread = compare(Resamples.of(fit, most(-1.0)), [sequence], [sequence])
    assert spread is not None
    assert (verdict, spread.low, spread.high) == ("inconclusive", 0.0, 0.0)
    verdict, spread = compare(Resamples.of(fit, most(0.0)), [sequence], [sequence])
    assert spread is not None
    assert (verdict, spread.low, spread.high) == ("comparable", 0.0, 0.0)


@pytest.mark.parametrize(("limit", "level"), [(0.9, 0.99), (1.0, 0.95), (2.0, 0.95)])
def test_where_no_question_may_be_lost_a_verdict_takes_more(
    fit: FitData,
    sequence: ThresholdSequence,
    limit: float,
    level: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def seen(difference: FloatArray, asked: float) -> Interval:
        assert asked == level
        return Interval(1.0, (0.5, 1.5))

    monkeypatch.setattr("stopadvisor.assessment.rated.interval", seen)
    verdict, _ = compare(Resamples.of(fit, most(limit)), [sequence], [sequence])
    assert verdict == "learned better"


def test_the_noise_of_choosing_is_half_the_distance_between_quartiles(
    fit: FitData, sequence: ThresholdSequence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stopadvisor.assessment.rated._RESAMPLES", RESAMPLES)
    other = scored(fit, "entropy", GridSchedule(CLEAR.budgets))
    ahead = []
    for drawn in resample_counts(N, RESAMPLES, rng=np.random.default_rng(N)):
        savings = []
        for each in (sequence, other):
            lost = LOST.of(each.view)
            costs, chosen = fit.costs(each.scorer, each.view), fit.full_cost
            for k in range(each.thresholds.size):
                at = np.arange(N), each.curve.stops(k)
                if drawn @ lost[at] > 3.0 * drawn.sum() / N + 1e-6:
                    break
                chosen = min(costs[at], fit.full_cost, key=lambda cost: drawn @ cost)
            savings.append(100 * (1 - drawn @ chosen / (drawn @ fit.full_cost)))
        ahead.append(savings[0] - savings[1])
    low, high = np.quantile(ahead, [0.25, 0.75])
    found = choice_noise(Resamples.of(fit, most(3.0)), [sequence], [other])
    assert found == pytest.approx((high - low) / 2, abs=1e-3)
    assert found > 0
    assert choice_noise(Resamples.of(fit, most(3.0)), [sequence], []) == 0.0
