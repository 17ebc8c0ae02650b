"""Imitated calibrations and resamples against plain Python, and against real calibrations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stopadvisor.assessment.choice import Settings, choose
from stopadvisor.assessment.limits import FitLimits
from stopadvisor.assessment.rated import Imitation, Resamples, choice_noise, compare, saving_lower
from stopadvisor.assessment.sequences import FitData, ThresholdSequence
from stopadvisor.certification.calibration import calibrate
from stopadvisor.ground.arrays import FloatArray
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.trigger import ListedTrigger
from stopadvisor.rules.losses import LOST
from stopadvisor.stats.bounds import max_losses
from stopadvisor.stats.intervals import Interval, resample_counts
from tests.populations import POPULATIONS, fit_data, renamed
from tests.populations import sequence as scored

MIXED = POPULATIONS[0]
TEST = Settings(alpha=0.15, delta=0.05)


def draw(n: int, seed: int) -> OpenQuestions:
    return MIXED.draw(n, np.random.default_rng(seed))


def confidence(fit: FitData) -> ThresholdSequence:
    return scored(fit, "confidence", ListedTrigger(MIXED.budgets))


def expected(
    fit: FitData, sequence: ThresholdSequence, imitation: Imitation, factors: list[float]
) -> float:
    """Mean saving over imitated calibrations, one question and one threshold after the other."""
    test, size = imitation.settings, sequence.thresholds.size
    lost = LOST.of(sequence.view)
    stops = [sequence.curve.stops(k) for k in range(size)]
    savings = []
    for draws in imitation.draws.astype(np.float64).tolist():
        most = max_losses(round(sum(draws)), test.alpha, test.delta)
        losses = [
            sum(times * lost[i, at[i]] for i, times in enumerate(draws) if times) for at in stops
        ]
        for factor in factors:
            limit = -1 if most < 0 else round(factor * most)
            passed = [k for k in range(size) if losses[k] <= limit]
            passed = [k for k in passed if max(losses[: k + 1]) <= limit]
            cost = sequence.costs[passed[-1]] if passed else imitation.full_cost
            savings.append(100 * (1 - cost / imitation.full_cost))
    return float(np.mean(savings))


@pytest.mark.parametrize(
    "test",
    [TEST, replace(TEST, alpha=0.3), replace(TEST, alpha=0.05), replace(TEST, alpha=0.01)],
    ids=["usual", "large", "none lost", "too few"],
)
def test_each_imitated_calibration_walks_along_the_sequence(
    test: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stopadvisor.assessment.rated._DRAWS", 15)
    fit = fit_data(draw(40, 1))
    sequence = confidence(fit)
    imitation = Imitation.draw(fit, 60, test)
    assert imitation.draws.shape == (15, 40)
    assert (imitation.draws.sum(axis=1) == 60).all()
    found = imitation.saving_pct(sequence)
    assert found == pytest.approx(expected(fit, sequence, imitation, [1.0]))
    both = imitation.rate(sequence)
    assert both.saving_pct == found
    rating = both.rating_pct
    factors = [2 / 3, 1.0, 4 / 3, 3 / 2, 2.0, 5 / 2]
    assert rating == pytest.approx(expected(fit, sequence, imitation, factors))
    assert (found == 0) == (test.alpha == 0.01)
    assert rating >= found - 1e-9 or test.alpha == 0.01


def test_traces_of_one_question_are_drawn_one_at_a_time() -> None:
    table = draw(40, 2)
    table = replace(table, groups=tuple(f"g{i // 4}" for i in range(40)))
    fit = fit_data(table)
    imitation = Imitation.draw(fit, 30, TEST)
    assert imitation.draws.shape[1] == 10
    assert imitation.draws.sum(axis=1) * 4 == pytest.approx(30)
    # So the mean loss in a draw is that of its blocks, whatever their size.
    sequence = confidence(fit)
    losses = imitation.draws @ sequence.counts[0].lost
    assert losses.mean(axis=0) == pytest.approx(30 * sequence.losses / 40, rel=0.25, abs=0.3)


def test_what_is_expected_is_what_calibrations_certify() -> None:
    settings = Settings(alpha=0.15, families=("confidence",))
    chosen = choose(renamed(draw(300, 3), "f").as_fit(), 150, settings)
    assert chosen.advised_point is not None
    rng = np.random.default_rng(4)
    found = []
    for _ in range(60):
        rule = calibrate(chosen, MIXED.draw(150, rng).as_calibration()).rule
        found.append(0.0 if rule is None else rule.fit_saving_pct or 0.0)
    # 300 fit questions know their law by a few percent.
    assert np.mean(found) == pytest.approx(chosen.advised_point.expected_saving_pct, abs=6)


def test_more_labels_are_expected_to_save_more() -> None:
    chosen = choose(draw(200, 5).as_fit(), 150, Settings(alpha=0.1, families=("confidence",)))
    rows = chosen.label_savings
    assert list(rows) == [100, 150, 200, 400, 800, 1600, 3200]
    savings = list(rows.values())
    assert savings[-1] > savings[0]
    assert min(np.diff(savings)) > -3
    assert chosen.advised_point is not None
    assert savings[1] == chosen.advised_point.expected_saving_pct


# --- Resamples ------------------------------------------------------------------------------------

CLEAR = replace(POPULATIONS[0], signal=5.0)
"""Confidence tells right from wrong so well that even without a loss much is saved."""
N = 120
RESAMPLES = 40


@pytest.fixture(scope="module")
def fit() -> FitData:
    return fit_data(CLEAR.draw(N, np.random.default_rng(1)))


@pytest.fixture(scope="module")
def sequence(fit: FitData) -> ThresholdSequence:
    return scored(fit, "confidence", ListedTrigger(CLEAR.budgets))


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
    other = scored(fit, "entropy", ListedTrigger(CLEAR.budgets))
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
