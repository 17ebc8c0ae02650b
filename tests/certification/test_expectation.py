"""What a certified rule is expected to save, and what its traffic is compared with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from stopadvisor.assessment.choice import Settings, choose
from stopadvisor.certification.calibration import ExportedRule, calibrate
from stopadvisor.certification.expectation import (
    differs_limit,
    expectation,
    saving_band,
    served_features,
)
from stopadvisor.probes.outcomes import CalibrationQuestions, OpenQuestions
from stopadvisor.rules.costs import PAPER_WEIGHTS, full_counts, stopped_counts
from stopadvisor.rules.losses import LOST
from stopadvisor.rules.outcomes import measure_rule
from stopadvisor.rules.schedules import GridSchedule
from stopadvisor.rules.scorer import Scorer
from stopadvisor.stats.bounds import max_losses, upper_limit
from stopadvisor.stats.intervals import resample_counts
from tests.populations import POPULATIONS, renamed

MIXED = POPULATIONS[0]
SETTINGS = Settings(alpha=0.15, families=("confidence",))
SCORER = Scorer("confidence", GridSchedule(MIXED.budgets), None)
THRESHOLDS = -np.array([0.01, 0.05, *np.linspace(0.1, 1.0, 19), 1.5, 2.5])


def draw(n: int, seed: int, prefix: str = "c") -> OpenQuestions:
    return renamed(MIXED.draw(n, np.random.default_rng(seed)), prefix)


def savings(table: OpenQuestions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Costs along the thresholds, (n_questions, n_thresholds), full costs, and losses."""
    curve = SCORER.curve(table, THRESHOLDS)
    costs = stopped_counts(table, "kv-fork", asking=SCORER.asking).weighed(PAPER_WEIGHTS)
    n = table.n_questions
    each = curve.totals(costs, np.arange(n), n)
    lost = curve.totals(LOST.of(table))[0].round()
    return each, full_counts(table).weighed(PAPER_WEIGHTS), lost


@pytest.fixture(scope="module")
def rule() -> ExportedRule:
    """The rule that `draw(160, 1)` certifies."""
    chosen = choose(draw(160, 0, "f").as_fit(), 160, SETTINGS)
    found = calibrate(chosen, draw(160, 1).as_calibration()).rule
    assert found is not None
    return found


def test_the_rule_is_measured_on_the_questions_that_certified_it(rule: ExportedRule) -> None:
    table = draw(160, 1).as_calibration()
    found, saving_band95 = expectation(rule, table, SETTINGS, seed=0)
    view = rule.scorer.view(table)
    assert found == measure_rule(rule.scorer, rule.threshold, table, SETTINGS.costing)
    assert found.losses == rule.certificate.losses
    low, high = saving_band95
    assert low < found.total_saving_pct < high
    assert high - low < 30
    assert expectation(rule, table, SETTINGS, seed=0)[1] == saving_band95
    costs = rule.scorer.costs(view, SETTINGS.costing)
    each = rule.scorer.curve(view, rule.order).totals(costs, np.arange(160), 160)
    band = saving_band(
        each, full_counts(table).weighed(PAPER_WEIGHTS), rng=np.random.default_rng(0)
    )
    assert saving_band95 == pytest.approx(band[:, rule.certificate.index])


def test_traces_of_one_group_are_drawn_together(rule: ExportedRule) -> None:
    """Five copies of each question say no more than one of each."""
    table = draw(160, 1).as_calibration()
    five = table.take(np.repeat(np.arange(160), 5))
    assert len(set(five.groups)) == 160
    one, other = (expectation(rule, questions, SETTINGS, seed=0)[1] for questions in (table, five))
    assert other == pytest.approx(one)
    alone = replace(five, groups=tuple(f"g{k}" for k in range(800)))
    narrow = expectation(rule, alone, SETTINGS, seed=0)[1]
    assert narrow[1] - narrow[0] < 0.6 * (one[1] - one[0])


def test_the_band_holds_wherever_the_data_put_the_threshold() -> None:
    """150 data sets of 200 questions, against the saving on 60,000.

    Where nearly nobody or nearly everybody stops, the saving of so few questions is too skewed for
    any bootstrap to hold; the middle has to hold everywhere at once, and the certified threshold
    wherever it lies.
    """
    rng = np.random.default_rng(2)
    costs, full, _ = savings(MIXED.draw(60_000, rng))
    truth = 100 * (1 - costs.sum(axis=0) / full.sum())
    middle = slice(2, 15)  # a third to 96 % of the questions stop
    most = max_losses(200, 0.15, 0.05)
    repeats = 150
    everywhere = certified = alone = 0
    for _ in range(repeats):
        costs, full, lost = savings(MIXED.draw(200, rng))
        low, high = saving_band(costs, full, rng=rng)
        inside = (low <= truth) & (truth <= high)
        everywhere += inside[middle].all()
        over = np.flatnonzero(lost > most)
        certified += inside[(int(over[0]) if over.size else lost.size) - 1]
        # The interval of one threshold by itself is narrower, and fails at the worst of them.
        error = (high - low)[middle]
        worst = middle.start + int(np.argmax(np.abs((low + high) / 2 - truth)[middle] / error))
        one = saving_band(costs[:, [worst]], full, rng=rng)
        alone += one[0, 0] <= truth[worst] <= one[1, 0]
    least = stats.binom.ppf(0.001, repeats, 0.95)
    assert everywhere >= least
    assert certified >= least
    assert alone < least


def test_around_the_saving_of_one_threshold_lie_95_in_100_resamples() -> None:
    rng = np.random.default_rng(4)
    full = rng.lognormal(6, 0.9, 80)
    costs = full * rng.random(80)
    low, high = saving_band(costs[:, None], full, rng=np.random.default_rng(0))[:, 0]
    counts = resample_counts(80, 1000, rng=np.random.default_rng(0)).astype(float)
    saved = 100 * (1 - counts @ costs / (counts @ full))
    assert (low + high) / 2 == pytest.approx(100 * (1 - costs.sum() / full.sum()))
    assert ((low <= saved) & (saved <= high)).sum() == 950


def test_what_cannot_vary_has_no_width() -> None:
    full = np.array([10.0, 20.0, 30.0])
    costs = np.column_stack([full, full / 2, [1.0, 9.0, 2.0]])
    low, high = saving_band(costs, full, rng=np.random.default_rng(0))
    assert (low[0], high[0]) == pytest.approx((0.0, 0.0))  # full thinking
    assert (low[1], high[1]) == pytest.approx((50.0, 50.0))  # half of each
    assert low[2] < 100 * (1 - 12 / 60) < high[2]


def test_no_band_says_that_more_than_everything_is_saved() -> None:
    costs = np.zeros((60, 1))
    costs[0] = 90.0  # all others cost nothing any more
    low, high = saving_band(costs, np.full(60, 100.0), rng=np.random.default_rng(5))
    assert low[0] < 100 == high[0]


def test_yardsticks_are_read_at_the_certified_threshold(rule: ExportedRule) -> None:
    entered = draw(300, 3).as_calibration()
    view = rule.scorer.view(entered)
    stops = rule.scorer.curve(view, np.array([rule.threshold])).stops(0)
    served = served_features(rule, entered)
    assert len(served.stop) == len(served.prompt_tokens) == 300
    stopped = stops < view.n_checkpoints
    assert [value >= 0 for value in served.stop] == stopped.tolist()
    row = int(np.flatnonzero(stopped)[0])
    assert served.stop[row] == view.positions_at(range(view.n_checkpoints))[0, stops[row]]
    assert served.prompt_tokens == tuple(entered.prompt_tokens)
    assert len(served.first_logprob or ()) == view.live[:, 0].sum()

    codes = entered.outcomes.natural_code
    assert codes is not None
    unknown = CalibrationQuestions.of(
        entered.observations, replace(entered.outcomes, natural_code=None)
    )
    assert differs_limit(rule, unknown, 0.05) is None
    places = np.arange(300), np.minimum(stops, view.n_checkpoints - 1)
    asked, right = view.answer_codes[places], view.correct[places]
    differs = (asked != codes) | (asked < 0) | (right != entered.full_correct) | view.truncated
    number = int((stopped & differs).sum())
    assert 0 < number < 300
    assert differs_limit(rule, entered, 0.05) == upper_limit(number, 300, 0.05)
