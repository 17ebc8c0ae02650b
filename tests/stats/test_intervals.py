"""Intervals for counts and by bootstrap: reference values, brute force, coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from stopadvisor.ground.arrays import FloatArray
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.trigger import ListedTrigger
from stopadvisor.rules.costs import PAPER_WEIGHTS, full_counts, stopped_counts
from stopadvisor.rules.losses import LOST
from stopadvisor.rules.scorer import Scorer
from stopadvisor.stats.bounds import max_losses
from stopadvisor.stats.intervals import (
    MOST_BLOCKS,
    block_sums,
    exact_interval,
    interval,
    paired_difference,
    resample_counts,
    saving_band,
    saving_interval,
)
from tests.populations import POPULATIONS


def test_the_exact_interval_holds_what_two_binomial_tests_admit() -> None:
    low, high = exact_interval(3, 40)
    assert stats.binom.sf(2, 40, low) == pytest.approx(0.025)
    assert stats.binom.cdf(3, 40, high) == pytest.approx(0.025)
    assert exact_interval(0, 5)[0] == 0.0
    assert exact_interval(5, 5)[1] == 1.0
    assert exact_interval(1, 1) == pytest.approx((0.025, 1))


def test_the_paired_interval_is_tangos() -> None:
    # Airway hyper-responsiveness in 21 children, in Fagerland, Lydersen and Laake (2014),
    # "Recommended tests and confidence intervals for paired binomial proportions"; in R
    # contingencytables::Tango_asymptotic_score_CI_paired_2x2(rbind(c(1, 1), c(7, 12))).
    assert paired_difference(1, 7, 21) == pytest.approx((-0.517, -0.026), abs=5e-4)


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


# --- Resampled questions --------------------------------------------------------------------------


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


def test_few_units_are_their_own_blocks() -> None:
    values = np.random.default_rng(3).random((50, 2))
    assert np.array_equal(block_sums(values), values)


@pytest.mark.parametrize("n", [MOST_BLOCKS, MOST_BLOCKS + 1, 3 * MOST_BLOCKS + 7])
def test_many_units_are_mixed_evenly_into_blocks(n: int) -> None:
    values = np.column_stack([np.ones(n), np.arange(n)]).astype(float)
    found = block_sums(values)
    assert len(found) == MOST_BLOCKS
    assert found.sum(axis=0) == pytest.approx(values.sum(axis=0))
    assert np.ptp(found[:, 0]) <= 1


# --- The saving of one rule -----------------------------------------------------------------------


def bootstrap_t(costs: FloatArray, full: FloatArray, seed: int) -> tuple[float, float]:
    """The recipe of the book, one resample after the other; limits of the saving, in percent."""
    rng, n = np.random.default_rng(seed), len(costs)
    ratio = costs.sum() / full.sum()

    def error(a: FloatArray, b: FloatArray) -> float:
        return float(np.sqrt(((a - a.sum() / b.sum() * b) ** 2).sum()) / b.sum())

    scaled = []
    for rows in rng.integers(n, size=(1000, n)):
        a, b = costs[rows], full[rows]
        scaled.append((a.sum() / b.sum() - ratio) / error(a, b))
    ordered = sorted(scaled)
    return (  # 0.975 of 999 steps, outwards
        100 * (1 - ratio + ordered[24] * error(costs, full)),
        100 * (1 - ratio + ordered[975] * error(costs, full)),
    )


def with_unseen(costs: FloatArray, full: FloatArray) -> tuple[float, float]:
    """The saving of the sample and as many unseen questions as one sample in 40 misses."""
    n = len(full)
    share = next(p for p in np.linspace(0, 1, 200_001) if (1 - p) ** n <= 0.025)
    more = n * share / (1 - share)  # questions added to n, to have that share
    whole = full.sum() + more * full.max()
    least, most = (1 - (costs.sum() + more * each) / whole for each in (full.max(), 0.0))
    return 100 * least, 100 * most


@pytest.mark.parametrize(
    ("sigma", "spread", "is_wider"), [(0.3, 1.0, False), (0.9, 0.01, True)], ids=["varied", "alike"]
)
@pytest.mark.parametrize("size", [1.0, 1e-6], ids=["usual", "all but free"])
def test_the_interval_of_a_saving_reaches_to_the_farther_of_two_recipes(
    sigma: float, spread: float, is_wider: bool, size: float
) -> None:
    rng = np.random.default_rng(4)
    full = rng.lognormal(6, sigma, 30)
    costs = size * full * (0.9 + spread * (rng.random(30) - 0.9))
    (low, high), (least, most) = bootstrap_t(costs, full, 8), with_unseen(costs, full)
    if size == 1.0:
        assert (least < low, most > high) == (is_wider, is_wider)
    found = saving_interval(costs, full, rng=np.random.default_rng(8))
    assert found is not None
    assert found[0] == pytest.approx(min(low, least), abs=1e-3)
    assert 100 - found[1] == pytest.approx(100 - max(high, most), rel=1e-4)


def test_the_interval_covers_where_rare_long_questions_decide_the_saving() -> None:
    """4 % of the questions think four times as long and never stop: 20 % of samples have none."""
    rng, n, repeats = np.random.default_rng(6), 40, 300
    true = 100 * (1 - (0.96 * 0.2 + 0.04 * 4) / (0.96 + 0.04 * 4))
    missed = 0
    for _ in range(repeats):
        is_long, length = rng.random(n) < 0.04, rng.lognormal(-0.125, 0.5, n)
        full = np.where(is_long, 4.0, length)
        costs = np.where(is_long, 4.0, length * rng.uniform(0.1, 0.3, n))
        found = saving_interval(costs, full, rng=rng)
        assert found is not None
        missed += not found[0] <= true <= found[1]
    assert missed <= stats.binom.ppf(0.999, repeats, 0.05)


@given(st.integers(2, 30), st.floats(0.1, 50), st.integers(0, 2**32 - 1))
def test_limits_follow_the_units_of_measurement(n: int, unit: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    full, share = 1 + rng.random(n), rng.random(n)
    one, other = (
        saving_interval(share * full * by, full * by, rng=np.random.default_rng(seed))
        for by in (1.0, unit)
    )
    assert other == (one and pytest.approx(one, rel=1e-5))


@pytest.mark.parametrize("n", [2, 20])
@pytest.mark.parametrize("costs", [3.0, 0.0])
def test_units_that_are_all_alike_leave_only_what_they_lack(costs: float, n: int) -> None:
    share = 1 - 0.025 ** (1 / n)
    found = saving_interval(np.full(n, costs), np.full(n, 12.0), rng=np.random.default_rng(0))
    saved = 100 * (1 - costs / 12)
    most = saved + share * 100 * costs / 12
    assert found == pytest.approx((saved * (1 - share), most))


def test_no_interval_says_that_more_than_everything_is_saved() -> None:
    """The bootstrap's upper limit alone is above 100 % here."""
    rng = np.random.default_rng(0)
    costs = rng.exponential(1, 8) ** 3
    costs, full = np.append(costs / costs.max() * 20, 60), np.full(9, 100.0)
    assert bootstrap_t(costs, full, 5)[1] > 100
    found = saving_interval(costs, full, rng=np.random.default_rng(5))
    assert found is not None
    assert found[1] == 100


def test_differences_that_rounding_hides_leave_no_limits() -> None:
    """The errors of resamples are roots of what is left of a difference, 1e-8 of the ratio."""
    full = np.full(20, 12.0)
    costs = 3.0 + 1e-7 * np.arange(20.0)
    assert saving_interval(costs, full, rng=np.random.default_rng(0)) is None


@pytest.mark.parametrize("costs", [[1.0], [1.0, 4.0]], ids=["one unit", "two units"])
def test_too_few_units_have_no_limits(costs: list[float]) -> None:
    rng = np.random.default_rng(0)
    assert saving_interval(np.array(costs), np.full(len(costs), 5.0), rng=rng) is None


# --- The band of a saving -------------------------------------------------------------------------

MIXED = POPULATIONS[0]
SCORER = Scorer("confidence", ListedTrigger(MIXED.budgets), None)
THRESHOLDS = -np.array([0.01, 0.05, *np.linspace(0.1, 1.0, 19), 1.5, 2.5])


def savings(table: OpenQuestions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Costs along the thresholds, (n_questions, n_thresholds), full costs, and what is lost."""
    curve = SCORER.curve(table, THRESHOLDS)
    costs = stopped_counts(table, "kv-fork", asking=SCORER.asking).weighed(PAPER_WEIGHTS)
    n = table.n_questions
    each, lost = (curve.totals(x, np.arange(n), n) for x in (costs, LOST.of(table)))
    return each, full_counts(table).weighed(PAPER_WEIGHTS), lost


@pytest.mark.slow
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
    parts = (np.split(each, repeats) for each in savings(MIXED.draw(200 * repeats, rng)))
    for costs, full, lost in zip(*parts, strict=True):
        low, high = saving_band(costs, full, rng=rng)
        inside = (low <= truth) & (truth <= high)
        everywhere += inside[middle].all()
        over = np.flatnonzero(lost.sum(axis=0).round() > most)
        certified += inside[(int(over[0]) if over.size else len(truth)) - 1]
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
    full = rng.lognormal(6, 0.3, 80)
    costs = full * rng.random(80)
    low, high = saving_band(costs[:, None], full, rng=np.random.default_rng(0))[:, 0]
    counts = resample_counts(80, 1000, rng=np.random.default_rng(0)).astype(float)
    saved = 100 * (1 - counts @ costs / (counts @ full))
    assert (low + high) / 2 == pytest.approx(100 * (1 - costs.sum() / full.sum()))
    assert ((low <= saved) & (saved <= high)).sum() == 950


def test_what_cannot_vary_reaches_to_what_the_sample_may_lack() -> None:
    full = np.array([10.0, 20.0, 30.0])
    costs = np.column_stack([full, full / 2, [1.0, 9.0, 2.0]])
    low, high = saving_band(costs, full, rng=np.random.default_rng(0))
    for k in (0, 1):  # full thinking; half of each
        assert (low[k], high[k]) == pytest.approx(with_unseen(costs[:, k], full), abs=1e-2)
    assert low[2] < 100 * (1 - 12 / 60) < high[2]


def test_the_band_covers_where_the_sample_may_hold_no_question_that_stops() -> None:
    """2 % stop early, the others pay for probes: none of 20 % of samples stops."""
    rng, n, repeats = np.random.default_rng(7), 80, 300
    true, missed = 100 * (1 - (0.02 * 0.1 + 0.98 * 1.02)), 0
    for _ in range(repeats):
        costs = np.where(rng.random((n, 1)) < 0.02, 0.1, 1.02)
        low, high = saving_band(costs, np.ones(n), rng=rng)[:, 0]
        missed += not low <= true <= high
    assert missed <= stats.binom.ppf(0.999, repeats, 0.05)


def test_no_band_says_that_more_than_everything_is_saved() -> None:
    costs = np.zeros((60, 1))
    costs[0] = 90.0  # all others cost nothing any more
    low, high = saving_band(costs, np.full(60, 100.0), rng=np.random.default_rng(5))
    assert low[0] < 100 == high[0]
