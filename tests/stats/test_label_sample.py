"""The test of lost answers where a sample of the differing replies is labelled."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from stopadvisor.ground.arrays import BoolArray, FloatArray, IntArray
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.stats import label_sample
from stopadvisor.stats.bounds import max_losses, upper_limit
from stopadvisor.stats.label_sample import (
    most_lost_labelled,
    sample_limit,
    sample_passes,
    share_lost,
)

DELTA = 0.05
CELLS = [
    (12, 1, 0.3, 0.1),
    (20, 4, 0.2, 0.05),
    (20, 2, 0.12, 0.1),  # not one may be lost
    (40, 5, 0.1, 0.05),
    (60, 8, 0.15, 0.1),
    (90, 30, 0.1, 0.05),
    (200, 20, 0.05, 0.05),
    (400, 30, 0.1, 0.05),
]


def enumerated(most: IntArray, labels: int, q: float, p: float) -> float:
    """Chance of a rejection, every outcome counted: D, then l of the labelled."""
    n = most.size - 1
    differing, lost = np.arange(n + 1)[:, None], np.arange(labels + 1)
    chance = stats.binom.pmf(lost, np.minimum(differing, labels), p)
    chance *= stats.binom.pmf(differing, n, q)
    return float(chance[lost <= most[:, None]].sum())


@pytest.mark.parametrize(("n", "labels", "alpha", "delta"), CELLS)
def test_no_share_of_differing_replies_breaks_it_and_its_size_is_used(
    n: int, labels: int, alpha: float, delta: float
) -> None:
    most = most_lost_labelled(n, labels, alpha, delta)
    shares = np.unique(np.concatenate([np.geomspace(alpha, 1, 40), np.linspace(alpha, 1, 40)]))
    chances = [enumerated(most, labels, q, min(alpha / q, 1.0)) for q in shares]
    assert max(chances) <= delta
    if n >= 90:
        assert max(chances) > 0.85 * delta
    assert (np.diff(most) <= 0).all()
    # While all differing replies are labelled it allows what all labels do at nearly delta.
    assert (most[: labels + 1] == max_losses(n, alpha, 0.96 * delta)).all()
    if most[0] >= 0:
        passed = [sample_passes(k, labels, n, labels, alpha, delta) for k in (most[0], most[0] + 1)]
        assert passed == [True, False]
    # And no larger risk is excluded more often.
    for q, more in product(shares[::8], (1.05, 1.3)):
        p = alpha * more / q
        if p <= 1:
            assert enumerated(most, labels, q, p) <= delta


def region(n: int, labels: int, alpha: float, most: int, deviations: float) -> list[int]:
    """Of the notes, one number of differing replies after the other."""
    found, expected = [most] * (labels + 1), n * alpha
    for d in range(labels + 1, n + 1):
        variance = expected * (1 - alpha) + expected * max(d - expected, 0) / labels
        allowed = math.floor(labels / d * (expected - deviations * math.sqrt(variance)) + 1e-9)
        found.append(max(min(allowed, found[-1]), -1))
    return found


@pytest.mark.parametrize(
    ("n", "labels", "alpha", "most"),
    [(12, 1, 0.3, 1), (40, 5, 0.3, 7), (60, 20, 0.2, 6), (200, 60, 0.4, 70)],
)
def test_chances_and_regions_are_those_of_the_notes(
    n: int, labels: int, alpha: float, most: int
) -> None:
    for deviations in np.arange(0.0, 3.0, 0.1):
        found = label_sample._region(n, labels, alpha, most, deviations)
        assert found.tolist() == region(n, labels, alpha, most, deviations)
    q = np.array([1e-5, 0.01, 0.1, 0.3, 0.4, 0.45, 0.9, 1.0])
    for deviations, p in ((0.3, 0.1), (2.0, 0.4), (2.9, 0.01)):
        allowed = label_sample._region(n, labels, alpha, most, deviations)
        exact = [enumerated(allowed, labels, float(each), p) for each in q]
        for bound in (
            label_sample._chances(allowed, labels, q, np.full(q.size, p)),
            [label_sample._chances(allowed, labels, q[[k]], np.array([p])) for k in range(q.size)],
        ):
            assert np.ravel(bound) == pytest.approx(exact, abs=1e-11)


def test_a_size_is_at_most_delta_only_with_the_room_that_its_bound_takes() -> None:
    labels, alpha = 5, 0.2
    most = label_sample._region(40, labels, alpha, 4, 1.2)
    q = np.linspace(alpha, 1, 400)
    for _ in range(3):  # of the peak of its chance, found to six digits
        chances = label_sample._chances(most, labels, q, alpha / q)
        k = int(chances.argmax())
        q = np.linspace(q[max(k - 1, 0)], q[min(k + 1, 399)], 400)
    peak = chances.max()
    shown = [label_sample._is_at_most(most, labels, alpha, room * peak) for room in (1.00001, 1.01)]
    assert shown == [False, True]


@pytest.mark.parametrize(("n", "alpha"), [(60, 0.1), (300, 0.02), (40, 0.05)])
def test_with_every_label_it_is_the_binomial_test(n: int, alpha: float) -> None:
    most = most_lost_labelled(n, n, alpha, DELTA)
    assert (most == max_losses(n, alpha, DELTA)).all()
    assert (most_lost_labelled(n, n + 1, alpha, DELTA) == most).all()
    for lost in (0, 1, 4, n - 1, n):
        assert sample_limit(lost, n, n, n, DELTA) == pytest.approx(
            upper_limit(lost, n, DELTA), abs=1.2e-4
        )


@settings(max_examples=20)
@given(st.integers(5, 60), st.integers(1, 40), st.sampled_from([0.05, 0.1, 0.3]), st.data())
def test_a_count_passes_as_the_table_says(
    n: int, labels: int, alpha: float, data: st.DataObject
) -> None:
    most = most_lost_labelled(n, labels, alpha, DELTA)
    differing = data.draw(st.integers(0, n))
    lost = data.draw(st.integers(0, min(differing, labels)))
    passes = sample_passes(lost, differing, n, labels, alpha, DELTA)
    if lost <= most[differing]:
        assert passes
        assert sample_limit(lost, differing, n, labels, DELTA) <= alpha + 2e-4
    elif passes:  # between two numbers of deviations that were tried
        assert sample_limit(lost, differing, n, labels, DELTA) >= alpha - 2e-3
    limit = sample_limit(lost, differing, n, labels, DELTA)
    assert limit >= share_lost(lost, differing, n, labels)


@pytest.mark.parametrize(("lost", "n", "passes"), [(5, 103, True), (20, 287, False)])
def test_while_all_are_labelled_4_hundredths_of_delta_are_left_for_more(
    lost: int, n: int, passes: bool
) -> None:
    chance = stats.binom.cdf(lost, n, 0.1)
    assert chance < 0.97 * DELTA
    assert bool(chance <= 0.96 * DELTA) is passes
    assert sample_passes(lost, 30, n, 30, 0.1, DELTA) is passes
    assert sample_passes(lost, 30, n, n, 0.1, DELTA), "all of delta, with a label for everyone"


def test_a_reference_value() -> None:
    """30 of 53 differing replies labelled, 15 lost: the scratch value of a plain grid of q."""
    n, labels, alpha = 400, 30, 0.1
    most = most_lost_labelled(n, labels, alpha, DELTA)
    assert most[[20, 30, 35, 40, 50, 60, 80, 120]].tolist() == [29, 29, 25, 22, 17, 13, 9, 5]
    assert sample_limit(15, 53, n, labels, DELTA) == pytest.approx(0.0966, abs=2e-4)
    passed = [sample_passes(29, d, n, labels, alpha, DELTA) for d in (30, 31, 32, n)]
    assert passed == [True, True, False, False]
    with pytest.raises(ValueError, match="read-only"):
        most[0] = 0


def test_what_it_cannot_take_is_refused() -> None:
    assert most_lost_labelled(1, 1, 0.5, 0.6).tolist() == [0, 0]
    assert most_lost_labelled(20_000, 20_000, 0.1, DELTA)[0] == max_losses(20_000, 0.1, DELTA)
    for n, labels in ((30, 0), (0, 1), (20_001, 1)):
        with pytest.raises(CalibrationError, match="1 to 20000 questions and 1 label or more"):
            most_lost_labelled(n, labels, 0.1, DELTA)
    with pytest.raises(CalibrationError, match="alpha"):
        most_lost_labelled(30, 4, 1.0, DELTA)


# --- Whole calibrations, from populations whose risk is known -------------------------------------


@dataclass(frozen=True)
class Population:
    """Questions whose replies start to differ along the thresholds; some come back."""

    differs: float
    """Share of questions that differ at the boldest threshold."""
    lost: float
    """Of those, the share whose natural answer is right, at the boldest threshold."""
    tied: float
    """How far the questions that differ early are those that are lost; negative: seldom."""
    wavers: float
    """Share of thresholds at which a reply that differs agrees after all."""

    def draw(self, runs: int, n: int, rng: np.random.Generator) -> tuple[BoolArray, BoolArray]:
        """Whether each reply differs, and whether it is lost, (runs, n, n_thresholds)."""
        steps = np.linspace(0, 1, 24, dtype=np.float32)
        start = rng.random((runs, n), np.float32) / self.differs  # at most 1 where it ever differs
        chance = np.clip(self.lost + self.tied * (0.5 - start), 0, 1)
        is_right = rng.random((runs, n), np.float32) < chance
        differs = start[..., None] <= steps
        if self.wavers:
            differs &= rng.random(differs.shape, np.float32) >= self.wavers
        return differs, differs & is_right[..., None]


POPULATIONS = (
    Population(0.35, 0.6, 0.0, 0.0),
    Population(0.8, 0.3, 0.3, 0.0),
    Population(0.16, 0.95, 0.0, 0.05),
    Population(0.5, 0.5, -0.6, 0.1),
    Population(0.25, 0.8, 0.4, 0.3),
)
"""Of few and many differing replies, few and many of them lost, with paths that turn back."""
N, ALPHA = 300, 0.1
AT_ONCE = 125
"""Runs that are simulated together."""

Way = Callable[[BoolArray, BoolArray, int, np.random.Generator], IntArray]
"""Last threshold that passes in each run; the rows are in the order of asking."""


def last(passed: BoolArray) -> IntArray:
    """The one before the first that fails; `passed` is (runs, n_thresholds)."""
    failed = np.where(passed.all(axis=1), passed.shape[1], passed.argmin(axis=1))
    return np.asarray(failed - 1, dtype=np.int64)


def places(differs: BoolArray) -> NDArray[np.int16]:
    """Place of each reply that differs among those at its threshold."""
    return np.asarray(differs.cumsum(axis=1, dtype=np.int16))


def by_place(lost: BoolArray, place: NDArray[np.int16], labels: int) -> IntArray:
    """The exact test of the first labelled."""
    counts = (lost & (place <= labels)).sum(axis=1)
    return last(counts <= most_lost_labelled(N, labels, ALPHA, DELTA)[place[:, -1]])


def exactly(differs: BoolArray, lost: BoolArray, labels: int, rng: np.random.Generator) -> IntArray:
    """As it is done."""
    return by_place(lost, places(differs), labels)


def as_if_it_were_known(
    differs: BoolArray, lost: BoolArray, labels: int, rng: np.random.Generator
) -> IntArray:
    """Broken: tests the labelled alone, as if the share that differs were known, not counted."""
    place = places(differs)
    counts, differing = (lost & (place <= labels)).sum(axis=1), place[:, -1].astype(np.int64)
    share = np.minimum(N * ALPHA / np.maximum(differing, 1), 1.0)
    chance = stats.binom.cdf(counts, np.minimum(differing, labels), share)
    return last((chance <= DELTA) | (differing <= N * ALPHA))


def by_whichever_number(
    differs: BoolArray, lost: BoolArray, labels: int, rng: np.random.Generator
) -> IntArray:
    """Broken: settles how many labels count after it has read them."""
    place = places(differs)
    tried = [by_place(lost, place, m) for m in range(labels // 3, 3 * labels, 4)]
    return np.asarray(np.max(tried, axis=0))


def by_score(
    differs: BoolArray, lost: BoolArray, labels: int, rng: np.random.Generator
) -> IntArray:
    """Broken: labels those first that the model is surest of, which are lost less often."""
    sure = rng.random(lost.shape[:2]) - 0.7 * lost.any(axis=2)
    order = np.argsort(-sure, axis=1)[..., None]
    return exactly(
        np.take_along_axis(differs, order, 1), np.take_along_axis(lost, order, 1), labels, rng
    )


@cache
def true_risk(population: Population) -> FloatArray:
    return np.asarray(population.draw(1, 200_000, np.random.default_rng(9))[1][0].mean(axis=0))


def broken_share(population: Population, way: Way, labels: int, runs: int) -> float:
    rng = np.random.default_rng([runs, labels, POPULATIONS.index(population)])
    risk = true_risk(population)
    broken = 0
    for _ in range(runs // AT_ONCE):
        index = way(*population.draw(AT_ONCE, N, rng), labels, rng)
        broken += int((risk[index[index >= 0]] > ALPHA).sum())
    return broken / runs


@pytest.mark.slow
@pytest.mark.parametrize("population", POPULATIONS, ids=str)
@pytest.mark.parametrize("labels", [10, 30, 60])
def test_broken_certificates_are_rare(population: Population, labels: int) -> None:
    runs = 2000
    most = float(stats.binom.ppf(0.999, runs, DELTA)) / runs
    assert broken_share(population, exactly, labels, runs) <= most


@pytest.mark.slow
@pytest.mark.parametrize("way", [as_if_it_were_known, by_whichever_number, by_score])
def test_a_broken_way_is_caught(way: Way) -> None:
    runs = 500
    most = float(stats.binom.ppf(0.999, runs, DELTA)) / runs
    assert any(broken_share(each, way, 30, runs) > most for each in POPULATIONS[:2])
