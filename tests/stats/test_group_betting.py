"""Evidence about questions that come in groups."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stopadvisor.arrays import IntArray
from stopadvisor.errors import CalibrationError
from stopadvisor.stats.bounds import Certified, Multiplicity, NotCertified, max_losses
from stopadvisor.stats.group_betting import (
    SHARES,
    group_interval,
    group_limit,
    group_log_evidence,
    group_lower_limit,
    group_passes,
    group_upper_limit,
)
from stopadvisor.stats.group_test import GroupTest, certify_groups

ALPHA, DELTA = 0.05, 0.05


def evidence(losses: list[int], sizes: list[int], alpha: float = ALPHA, most: int = 5) -> float:
    column = np.array(losses)[:, None]
    return float(group_log_evidence(column, np.array(sizes), alpha=alpha, most=most)[0])


def drawn(seed: int, n: int = 30, n_thresholds: int = 4) -> tuple[IntArray, IntArray]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, n)
    return rng.binomial(sizes[:, None], rng.random((n, n_thresholds)) * 0.3), sizes


# --- What it computes -----------------------------------------------------------------------------


def test_evidence_is_the_average_of_products() -> None:
    losses, sizes = drawn(0)
    found = group_log_evidence(losses, sizes, alpha=0.1, most=6)
    for threshold in range(4):
        products = []
        for share in SHARES:
            product = 1.0
            for lost, n in zip(losses[:, threshold], sizes, strict=True):
                product *= 1 - share / (6 * 0.9) * (lost - 0.1 * n)
            products.append(product)
        assert found[threshold] == pytest.approx(math.log(np.mean(products)))


def test_the_stakes_are_eighths_of_the_largest() -> None:
    """A certificate can be recomputed by whoever knows these eight, and by no other ones."""
    assert SHARES == (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)


def test_a_whole_group_that_is_lost_ends_the_largest_stake_alone() -> None:
    assert SHARES[-1] == 1
    found = evidence([5, 0], [5, 1])
    assert math.isfinite(found)
    assert found < evidence([4, 0], [5, 1])


def test_without_losses_single_questions_give_what_the_exact_test_gives_at_best() -> None:
    n = 59  # the fewest that certify 5 % without a loss
    assert max_losses(n, ALPHA, DELTA) == 0
    largest = -n * math.log1p(-ALPHA)
    assert evidence([0] * n, [1] * n, most=1) < largest
    assert evidence([0] * n, [1] * n, most=1) > largest - math.log(len(SHARES))


@given(st.integers(0, 2**32 - 1))
def test_order_does_not_matter_and_a_loss_more_is_evidence_less(seed: int) -> None:
    losses, sizes = drawn(seed)
    found = group_log_evidence(losses, sizes, alpha=ALPHA, most=5)
    order = np.random.default_rng(seed).permutation(len(sizes))
    again = group_log_evidence(losses[order], sizes[order], alpha=ALPHA, most=5)
    np.testing.assert_allclose(found, again)
    more = losses.copy()
    more[0] = np.minimum(more[0] + 1, sizes[0])
    less = group_log_evidence(more, sizes, alpha=ALPHA, most=5)
    assert (less <= found + 1e-12).all()


@given(st.integers(0, 2**32 - 1), st.floats(0.02, 0.5))
def test_the_limit_is_where_the_test_begins_to_pass(seed: int, delta: float) -> None:
    losses, sizes = drawn(seed, n_thresholds=1)
    upper = group_upper_limit(losses[:, 0], sizes, delta=delta, most=5)
    assert losses.sum() / sizes.sum() < upper <= 1
    for alpha in (upper - 1e-6, upper + 1e-6):
        if 0 < alpha < 1:
            passes = group_passes(losses, sizes, alpha=alpha, delta=delta, most=5)
            assert passes.tolist() == [alpha > upper]


@given(st.integers(0, 2**32 - 1), st.floats(0.02, 0.5))
def test_the_lower_limit_is_where_bets_on_more_losses_begin_to_pass(
    seed: int, delta: float
) -> None:
    losses, sizes = drawn(seed, n_thresholds=1)
    lower = group_lower_limit(losses[:, 0], sizes, delta=delta, most=5)
    assert 0 <= lower <= losses.sum() / sizes.sum()
    if not losses.any():
        assert lower == 0
        return
    for alpha in (lower - 1e-6, lower + 1e-6):
        if alpha <= 0:
            continue
        products = [
            math.prod(
                1 + share / (5 * alpha) * (lost - alpha * n)
                for lost, n in zip(losses[:, 0].tolist(), sizes.tolist(), strict=True)
            )
            for share in SHARES
        ]
        assert (np.mean(products) >= 1 / delta) == (alpha < lower)


def test_an_interval_holds_the_mean_and_each_limit_at_half() -> None:
    losses, sizes = drawn(7, n=300, n_thresholds=1)
    low, high = group_interval(losses[:, 0], sizes, most=5, level=0.9)
    assert 0 < low < losses.sum() / sizes.sum() < high < 1
    assert low == pytest.approx(group_lower_limit(losses[:, 0], sizes, delta=0.05, most=5))
    assert high == pytest.approx(group_upper_limit(losses[:, 0], sizes, delta=0.05, most=5))


def test_limits_where_nothing_and_everything_is_lost() -> None:
    sizes = np.full(30, 2)
    assert group_lower_limit(np.zeros(30, dtype=int), sizes, delta=DELTA, most=2) == 0.0
    assert group_upper_limit(sizes, sizes, delta=DELTA, most=2) == 1.0


def test_gains_may_count_against_losses() -> None:
    assert evidence([0, -1, 0], [2, 2, 2]) > evidence([0, 0, 0], [2, 2, 2])
    gained = -np.ones(80, dtype=int)
    assert group_upper_limit(gained, np.full(80, 2), delta=DELTA, most=2) == 0.0


# --- What it promises -----------------------------------------------------------------------------


def largest_expectation(lost_of_two: list[float]) -> float:
    """Exact expectation over three groups: one question, or two of which 0, 1 or 2 are lost.

    `lost_of_two` are the probabilities of those; a group of one is lost so often that the risk of a
    question is alpha.
    """
    share_of_two = 0.4
    questions = 0.6 + 0.4 * 2
    lost = 0.4 * (lost_of_two[1] + 2 * lost_of_two[2])
    lone = (0.3 * questions - lost) / 0.6  # alpha 0.3
    assert 0 <= lone <= 1
    kinds = [(1, 0, 0.6 * (1 - lone)), (1, 1, 0.6 * lone)]
    kinds += [(2, k, share_of_two * p) for k, p in enumerate(lost_of_two)]
    total = 0.0
    for groups in itertools.product(kinds, repeat=3):
        probability = math.prod(p for _, _, p in groups)
        if probability:
            sizes, losses = [n for n, _, _ in groups], [k for _, k, _ in groups]
            total += probability * math.exp(evidence(losses, sizes, alpha=0.3, most=2))
    return total


@pytest.mark.parametrize(
    "lost_of_two", [[1, 0, 0], [0.6, 0, 0.4], [0.2, 0.8, 0], [0.5, 0.25, 0.25]]
)
def test_the_expectation_at_alpha_is_one_however_groups_hang_together(
    lost_of_two: list[float],
) -> None:
    assert largest_expectation(lost_of_two) == pytest.approx(1)


RUNS = 3000


def grouped(n_groups: int, hard: float, rng: np.random.Generator, *, together: bool) -> IntArray:
    """Losses and sizes: 30 % of groups hold five questions at this risk, others one at 1 %."""
    sizes = np.where(rng.random((RUNS, n_groups)) < 0.3, 5, 1)
    risk = np.where(sizes == 5, hard, 0.01)
    if together:
        losses = sizes * (rng.random(sizes.shape) < risk)
    else:
        losses = rng.binomial(sizes, risk)
    return np.stack([losses, sizes])


def hard_at(question_risk: float) -> float:
    """Risk in the large groups that gives all questions this one."""
    return (question_risk * (0.7 + 0.3 * 5) - 0.7 * 0.01) / (0.3 * 5)


def betting(losses: IntArray, sizes: IntArray) -> float:
    """Share of runs that certify."""
    passed = [
        group_passes(lost[:, None], held, alpha=ALPHA, delta=DELTA, most=5)[0]
        for lost, held in zip(losses, sizes, strict=True)
    ]
    return float(np.mean(passed))


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True], ids=["independently", "together"])
def test_false_certificates_where_large_groups_are_harder(together: bool) -> None:
    """Question-level risk a little above alpha: certified at most delta of the time."""
    rng = np.random.default_rng(1 + together)
    losses, sizes = grouped(400, hard_at(1.001 * ALPHA), rng, together=together)
    most = stats.binom.ppf(0.999, RUNS, DELTA) / RUNS
    assert betting(losses, sizes) <= most


def test_one_question_a_group_breaks_the_claim_about_all_questions() -> None:
    """The same data: the exact test on one question of each group certifies again and again."""
    rng = np.random.default_rng(3)
    losses, sizes = grouped(400, hard_at(1.001 * ALPHA), rng, together=False)
    first = rng.random(losses.shape) < losses / sizes  # one of the group, drawn at random
    broken = float((first.sum(axis=1) <= max_losses(400, ALPHA, DELTA)).mean())
    assert broken > 0.5  # about 0.64, where 0.05 was promised


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True], ids=["independently", "together"])
def test_false_lower_limits(together: bool) -> None:
    """At a question-level risk of alpha the lower limit is above it at most delta of the time."""
    rng = np.random.default_rng(5 + together)
    losses, sizes = grouped(200, hard_at(ALPHA), rng, together=together)
    found = [
        group_lower_limit(lost, held, delta=DELTA, most=5) > ALPHA
        for lost, held in zip(losses[:800], sizes[:800], strict=True)
    ]
    assert np.mean(found) <= stats.binom.ppf(0.999, 800, DELTA) / 800


@pytest.mark.slow
def test_certificates_are_found_where_the_risk_is_low() -> None:
    losses, sizes = grouped(400, hard_at(0.4 * ALPHA), np.random.default_rng(4), together=False)
    assert betting(losses, sizes) > 0.6


# --- What is aimed at on fit ----------------------------------------------------------------------


@pytest.mark.parametrize(("most", "together"), [(1, 1.0), (4, 1.0), (4, 2.0)])
def test_the_fit_limit_is_the_largest_share_that_passes(most: int, together: float) -> None:
    n = 300
    limit = group_limit(n, n * most, alpha=ALPHA, delta=DELTA, most=most, lost_together=together)
    sizes = np.full(n, most)
    losing = int(limit * n * most / together + 1e-9)
    assert 0 < losing < n

    def passes(groups: int) -> bool:
        losses = np.where(np.arange(n) < groups, int(together), 0)[:, None]
        return bool(group_passes(losses, sizes, alpha=ALPHA, delta=DELTA, most=most)[0])

    assert passes(losing)
    assert not passes(losing + 1)


def test_there_is_no_fit_limit_just_where_no_loss_does_not_pass() -> None:
    found = []
    for n in range(1, 100):
        none, sizes = np.zeros((n, 1), dtype=np.int64), np.ones(n, dtype=np.int64)
        passes = bool(group_passes(none, sizes, alpha=ALPHA, delta=DELTA, most=1)[0])
        assert (group_limit(n, n, alpha=ALPHA, delta=DELTA, most=1) >= 0) == passes
        found.append(passes)
    assert {True, False} == set(found)


def test_where_a_loss_in_every_group_passes_all_may_lose_one() -> None:
    """One of ten is less than alpha: the more groups, the more evidence."""
    found = []
    for n in range(1, 120):
        sizes, lost = np.full(n, 10), np.ones((n, 1), dtype=np.int64)
        limit = group_limit(n, 10 * n, alpha=0.15, delta=0.05, most=10)
        passes = bool(group_passes(lost, sizes, alpha=0.15, delta=0.05, most=10)[0])
        assert (limit == pytest.approx(0.1)) == passes
        found.append(passes)
    assert found == sorted(found)
    assert {True, False} == set(found)


@pytest.mark.parametrize("multiplicity", ["fixed-sequence", "finite-grid"])
def test_thresholds_of_groups_are_walked_and_refused_as_single_ones(
    multiplicity: Multiplicity,
) -> None:
    """One by one from the most careful, or as a grid whose last that passes is taken."""
    sizes, test = np.full(120, 2), GroupTest(2, 2.0)
    share = 0.05 if multiplicity == "fixed-sequence" else 0.05 / 3

    def certified(*lost: int) -> Certified | NotCertified:
        losses = (np.arange(120)[:, None] < np.array(lost)).astype(np.int64)
        return certify_groups(
            losses,
            sizes,
            test=test,
            alpha=0.15,
            delta=0.05,
            multiplicity=multiplicity,
            expected_risk=0.05,
        )

    found = certified(3, 119, 8)
    assert isinstance(found, Certified)
    assert (found.index, found.losses) == ((0, 3) if share == 0.05 else (2, 8))
    assert (found.n, found.groups, found.group_cap, found.bound) == (240, 120, 2, "betting")
    refused = certified(100, 110, 119)
    assert isinstance(refused, NotCertified)
    assert "already loses 100 of 240 calibration questions in 120 groups" in refused.reason
    needed = test.labels_needed(0.15, share, expected_risk=0.05)
    assert (refused.labels_needed, refused.assumed_risk) == (needed, 0.05)
    empty = certify_groups(
        np.zeros((120, 0), dtype=np.int64), sizes, test=test, alpha=0.15, delta=0.05
    )
    assert isinstance(empty, NotCertified)
    assert empty.reason == "there is no threshold to test"
    assert empty.labels_needed == test.labels_needed(0.15, 0.05, expected_risk=0.0)
    alone = certify_groups(  # a grid of one has the whole of delta, and 26 groups are the fewest
        np.zeros((26, 1), dtype=np.int64),
        sizes[:26],
        test=test,
        alpha=0.15,
        delta=0.05,
        multiplicity=multiplicity,
    )
    assert isinstance(alone, Certified)
    few = certify_groups(
        np.zeros((9, 3), dtype=np.int64),
        sizes[:9],
        test=test,
        alpha=0.15,
        delta=0.05,
        multiplicity=multiplicity,
        expected_risk=0.05,
    )
    assert isinstance(few, NotCertified)
    assert f"at confidence {1 - share:g} by betting on groups of up to 2" in few.reason
    fewest = test.labels_needed(0.15, share, expected_risk=0.0)
    assert (few.labels_needed, few.assumed_risk) == (fewest, 0.0)


def test_the_power_is_the_chance_of_so_few_unlucky_groups() -> None:
    """120 groups of two: one question of each unlucky group is lost."""
    sizes = np.full(120, 2)
    losing = np.arange(120)[:, None] < np.arange(121)  # one group more in each column
    passes = group_passes(losing.astype(np.int64), sizes, alpha=0.15, delta=0.05, most=2)
    allowed = int(np.flatnonzero(passes)[-1])
    found = GroupTest(2, 2.0).power(240, 0.15, 0.05, 0.08)
    assert found == pytest.approx(stats.binom.cdf(allowed, 120, 0.16))
    assert 0.1 < found < 0.99
    # Where every group may lose one, even the certainty that each does is no risk.
    assert GroupTest(10, 10.0).power(1190, 0.15, 0.05, 0.1) == 1.0


def test_what_even_no_loss_would_not_certify_has_no_chance() -> None:
    test = GroupTest(5, 2.2)
    assert test.limit(20, 0.15, 0.05) < 0
    assert test.power(20, 0.15, 0.05, 0.0) == 0.0
    assert test.power(600, 0.15, 0.05, 0.0) == 1.0
    assert test.labels_needed(0.15, 0.05, expected_risk=0.15) is None


def test_the_fit_limit_grows_with_calibration_and_falls_with_clusters() -> None:
    def limit(n: int, together: float = 1.0) -> float:
        return group_limit(n, 4 * n, alpha=ALPHA, delta=DELTA, most=4, lost_together=together)

    assert limit(10) == -1.0
    assert 0 < limit(100) < limit(1000) < ALPHA
    assert limit(1000, 4.0) < limit(1000, 2.0) < limit(1000)


# --- What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("losses", "sizes", "change", "message"),
    [
        ([0, 0], [1, 6], {}, "a calibration group holds 6 questions, more than the 5"),
        ([0, 0], [1, 0], {}, "at least one question, got 0"),
        ([2, 0], [1, 1], {}, "loses at most the questions that it holds"),
        ([0, 0], [1], {}, "a row for each of the groups"),
        ([], [], {}, "a row for each of the groups"),
        ([0], [1], {"alpha": 1.0}, "alpha must lie between 0 and 1, got 1.0"),
        ([0], [1], {"delta": 0.0}, "delta must lie between 0 and 1, got 0.0"),
        ([0], [1], {"delta": 1.0}, "delta must lie between 0 and 1, got 1.0"),
    ],
)
def test_what_makes_no_sense_is_refused(
    losses: list[int], sizes: list[int], change: dict[str, float], message: str
) -> None:
    settings = {"alpha": ALPHA, "delta": DELTA, **change}
    column = np.array(losses, dtype=np.int64)[:, None]
    with pytest.raises(CalibrationError, match=message):
        group_passes(column, np.array(sizes, dtype=np.int64), most=5, **settings)


def test_a_lower_limit_takes_no_gains() -> None:
    with pytest.raises(CalibrationError, match="a group here has gains"):
        group_lower_limit(np.array([1, -1]), np.array([2, 2]), delta=DELTA, most=2)


def test_a_risk_at_which_every_group_loses_is_never_certified() -> None:
    """Five questions a group, lost one at a time: beyond a fifth no group keeps them all."""
    assert GroupTest(5, 5.0, 1.0).power(4000, 0.05, 0.05, 0.5) == 0.0


def test_the_labels_that_groups_take_are_the_fewest_that_the_search_finds() -> None:
    test = GroupTest(4, 2.0, 1.5)
    for risk in (0.02, 0.07):
        needed = test.labels_needed(0.10, 0.05, expected_risk=risk)
        assert needed is not None
        assert test.power(needed, 0.10, 0.05, risk) >= 0.8
        assert test.power(needed - test.size, 0.10, 0.05, risk) < 0.8
        sure = test.labels_needed(0.10, 0.05, expected_risk=risk, power_wanted=0.88)
        assert sure is not None
        assert sure > needed


def test_labels_are_counted_up_to_half_a_million_groups() -> None:
    needed = GroupTest(1, 1.0).labels_needed(0.05, 0.05, expected_risk=0.04649)
    assert needed is not None
    assert needed > 475_000
    assert GroupTest(1, 1.0).labels_needed(0.05, 0.05, expected_risk=0.0469) is None


def test_no_label_shows_a_risk_below_itself() -> None:
    """Not even where groups as they are planned with, losing one each, stay below the risk."""
    test = GroupTest(4, 4.0)
    assert test.power(4000, 0.5, 0.05, 0.5) == 1.0
    assert test.labels_needed(0.5, 0.05, expected_risk=0.5) is None


def test_fewer_questions_than_a_group_holds_are_one_group() -> None:
    assert GroupTest(4, 4.0).limit(1, 0.9, 0.4) == -1.0
    assert group_limit(2, 1, alpha=0.9, delta=0.4, most=4) > 0
