"""Few labels: the questions asked for, and the decisions that follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stopadvisor.ground.arrays import BoolArray, FloatArray
from stopadvisor.stats import adaptive_labels
from stopadvisor.stats.adaptive_labels import (
    AskingPlan,
    LabelTest,
    asking_order,
    forecast,
    preferred_sample,
    walk,
)
from stopadvisor.stats.bounds import Certified, NotCertified, StopCurve, max_losses
from stopadvisor.stats.label_sample import most_lost_labelled

RUNS = 600


@dataclass(frozen=True)
class Labelled:
    """Calibration questions with all their labels, unknown to the walk."""

    test: LabelTest
    """With all labels."""
    right: BoolArray  # (n_questions,) whether the natural answer is

    @property
    def by_full_labels(self) -> int:
        """Last threshold that passes where every label is known."""
        over = np.flatnonzero(self.test.lost.sum(axis=0) > self.test.most)
        return (int(over[0]) if over.size else self.test.lost.shape[1]) - 1


def drawn(rng: np.random.Generator) -> Labelled:
    """Questions whose replies waver along the thresholds; any share of them may be wrong."""
    n, m, n_probes = int(rng.integers(20, 200)), int(rng.integers(1, 40)), 5
    scores = rng.normal(size=(n, n_probes)).cumsum(axis=1)
    live = rng.random((n, 1)) * n_probes * 1.5 > np.arange(n_probes)
    curve = StopCurve.build(scores, live, np.sort(rng.normal(size=m) * 3)[::-1])
    natural = rng.integers(0, 2, n)  # 0 is right
    changed = rng.random((n, n_probes + 1)) < rng.random() * 0.4
    changed[:, -1] = False
    codes = np.where(changed, rng.integers(0, 4, changed.shape), natural[:, None])
    differs, right = curve.each(codes != natural[:, None]), natural == 0
    most = max_losses(n, float(rng.uniform(0.02, 0.3)), 0.05)
    # Another normal form may be right too.
    lost = differs & right[:, None] & (rng.random(differs.shape) < 0.95)
    return Labelled(LabelTest(differs, lost, most, np.arange(1.0, m + 1)), right)


def asked(found: Labelled, rng: np.random.Generator, budget: int | None = None) -> tuple[int, int]:
    n = found.right.size
    end = walk([found.test], np.zeros(n, dtype=bool), rng.permutation(n), budget=budget)
    return end.indices[0], end.asked.size


@pytest.mark.slow
def test_each_decision_is_that_of_full_labels() -> None:
    rng = np.random.default_rng(15)
    fewer = 0
    for _ in range(RUNS):
        found = drawn(rng)
        index, n_asked = asked(found, rng)
        assert index == found.by_full_labels
        short, n_short = asked(found, rng, budget=int(rng.integers(0, 20)))
        assert short <= index
        assert n_short < 20
        fewer += n_asked < found.right.size
    assert fewer > 0.9 * RUNS


def by_the_stopped_side(found: Labelled) -> int:
    """Broken: asks once, of those stopped by then, and takes what is stopped later as kept."""
    test = found.test
    open_ = test.differs.sum(axis=0) > test.most
    asked = test.differs[:, open_.argmax()]
    over = test.lost[asked].sum(axis=0) > test.most
    return int(over.argmax()) - 1 if over.any() else over.size - 1


def by_an_order_chosen_after(found: Labelled, budget: int = 10) -> int:
    """Broken: asks first for what it saw is not lost, and takes the rest to be like those."""
    test = found.test
    for at in range(test.differs.shape[1]):
        differing = test.lost[test.differs[:, at], at]
        seen = np.sort(differing)[:budget]
        if seen.size and seen.mean() * differing.size > test.most:
            return at - 1
    return int(test.differs.shape[1]) - 1


@pytest.mark.parametrize("broken", [by_the_stopped_side, by_an_order_chosen_after])
def test_a_broken_way_of_asking_is_told_from_full_labels(broken: Callable[[Labelled], int]) -> None:
    rng = np.random.default_rng(16)
    beyond = 0
    for _ in range(200):
        found = drawn(rng)
        beyond += broken(found) > found.by_full_labels
    assert beyond >= 20


def small(most: int = 1) -> LabelTest:
    differs = np.array([[0, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 1]], dtype=bool)
    return LabelTest(differs, np.zeros((4, 3), dtype=bool), most, np.array([1.0, 5.0, 9.0]))


def test_nothing_is_asked_for_while_few_replies_differ() -> None:
    end = walk([small(most=4)], np.zeros(4, dtype=bool), np.arange(4), budget=None)
    assert (end.indices, end.asked.size, end.wanted) == ((2,), 0, None)
    assert end.saving([small(most=4)]) == 9.0


def test_only_what_saves_something_is_asked_for_or_counts() -> None:
    none = np.zeros(4, dtype=bool)
    for savings, asks in (([-3.0, -2.0, -1.0], False), ([-3.0, -2.0, 0.05], True)):
        test = LabelTest(small().differs, small().lost, 1, np.array(savings))
        assert (walk([test], none, np.arange(4)).wanted is not None) is asks
        assert [test.saving(index) for index in (-1, 0)] == [0.0, 0.0]
    assert [small().saving(index) for index in range(3)] == [1.0, 5.0, 9.0]
    assert walk([], none, np.arange(4)).saving([]) == 0.0


def test_a_question_is_asked_for_where_it_differs_in_the_order_that_was_fixed() -> None:
    none = np.zeros(4, dtype=bool)
    for order, wanted in (([2, 1, 0, 3], 1), ([3, 0, 1, 2], 0)):
        end = walk([small()], none, np.array(order))
        assert (end.indices, end.wanted) == ((0,), wanted)
    # One label settles the middle threshold, and two more the last.
    end = walk([small()], none, np.array([3, 2, 1, 0]), budget=None)
    assert (end.indices, end.asked.tolist(), end.wanted) == ((2,), [1, 3, 2], None)


def test_a_question_that_cannot_be_labelled_counts_as_lost() -> None:
    test = small()
    lost = np.where(np.array([True, False, False, True])[:, None], test.differs, False)
    known = np.array([True, True, False, True])
    end = walk([LabelTest(test.differs, lost, 1, test.savings)], known, np.arange(4), budget=None)
    assert (end.indices, end.asked.size) == ((1,), 0)  # two of four are lost at the last


def test_a_second_test_that_cannot_save_more_asks_for_nothing() -> None:
    first = small(most=4)
    differs = np.ones((4, 2), dtype=bool)
    for saving, asks in ((9.0, False), (9.5, True)):
        second = LabelTest(differs, np.zeros((4, 2), bool), 0, np.array([2.0, saving]))
        end = walk([first, second], np.zeros(4, dtype=bool), np.arange(4), budget=None)
        assert (end.asked.size > 0) is asks


def test_the_order_of_asking_depends_on_salt_and_keys_alone() -> None:
    keys = [f"q{i}" for i in range(50)]
    order = asking_order(keys, "one")
    assert sorted(order.tolist()) == list(range(50))
    assert not np.array_equal(order, asking_order(keys, "two"))
    turned = asking_order(keys[::-1], "one")
    assert [keys[i] for i in order] == [keys[::-1][i] for i in turned]


def test_a_forecast_is_near_what_further_labels_bring() -> None:
    rng = np.random.default_rng(17)
    labels, savings = [], []
    for _ in range(60):
        found = drawn(rng)
        order = rng.permutation(found.right.size)
        none = np.zeros(order.size, dtype=bool)
        start = walk([found.test], none, order, budget=15)
        said = forecast([found.test], start.known, order, rng=rng, n_draws=20)
        end = walk([found.test], start.known, order, budget=None)
        if start.wanted is None:
            assert (said.labels, said.saving_pp) == (0, 0)
            continue
        labels.append((said.labels, end.asked.size))
        savings.append((said.saving_pp, end.saving([found.test]) - start.saving([found.test])))
    expected, came = np.array(labels).mean(axis=0)
    assert came > 5
    assert 0.8 < expected / came < 1.25
    expected, came = np.array(savings).mean(axis=0)
    assert 0.8 < expected / came < 1.25


@dataclass
class Shares:
    """Draws these shares of right answers, and questions that are right with share 1 alone."""

    shares: Sequence[float]
    prior: tuple[float, float] = (0.0, 0.0)

    def beta(self, right: float, wrong: float, size: int) -> FloatArray:
        assert size == len(self.shares)
        self.prior = (right, wrong)
        return np.array(self.shares)

    def random(self, size: int) -> FloatArray:
        return np.full(size, 0.5)


def test_a_forecast_continues_the_walk_with_what_may_be_right() -> None:
    rng: Any = Shares([1.0, 1.0, 1.0, 1.0, 0.0])
    none, order = np.zeros(4, dtype=bool), np.array([3, 2, 1, 0])
    said = forecast([small()], none, order, rng=rng, n_draws=5)
    assert rng.prior == (1, 1)
    # Two labels end it where they are lost, and three pass all thresholds where nothing is.
    assert (said.labels, said.saving_pct) == (2.2, 1.0)
    assert said.saving_pp == pytest.approx(8.0 / 5)
    assert said.likely.tolist() == [1, 0]
    rng = Shares([0.0])
    said = forecast([small()], none, order, rng=rng, n_draws=1)
    assert said.likely.tolist() == [3, 2, 1]


def test_how_often_a_differing_reply_is_lost_is_learned_from_labels_of_those_that_differ() -> None:
    differs = np.array([[0, 1], [1, 1], [0, 1], [0, 0], [0, 1]], dtype=bool)
    lost = np.array([[0, 1], [0, 0], [0, 1], [0, 0], [0, 1]], dtype=bool)
    test = LabelTest(differs, lost, 1, np.array([1.0, 2.0]))
    rng: Any = Shares([0.0])
    known = np.array([True, True, True, True, False])
    forecast([test], known, np.arange(5), rng=rng, n_draws=1)
    assert rng.prior == (1 + 2, 1 + 1)


# --- A sample of the differing replies ------------------------------------------------------------


def test_all_labels_count_unless_fewer_than_questions_are_planned() -> None:
    differs = np.ones((4, 2), dtype=bool)
    for labels, counted in ((None, 4), (4, 4), (5, 4), (3, 3)):
        plan = AskingPlan(np.arange(4), labels)
        assert plan.is_sample is (counted == 3)
        assert plan.labelled(differs).sum(axis=0).tolist() == [counted] * 2
        assert plan.most(differs, 0.5, 0.0).tolist() == [-1] * 2, "no confidence is left"
    assert (
        AskingPlan(np.arange(4)).most(differs, 0.5, 0.7).tolist() == [max_losses(4, 0.5, 0.7)] * 2
    )


def test_a_sample_allows_what_its_own_test_does_and_all_labels_take_any_number() -> None:
    differs = np.arange(12)[:, None] < [1, 4, 12]
    most = AskingPlan(np.arange(12), 1).most(differs, 0.3, 0.1)
    assert most.tolist() == most_lost_labelled(12, 1, 0.3, 0.1)[[1, 4, 12]].tolist()
    assert len(set(most.tolist())) > 1
    n = 20_001  # more than the test of a sample takes
    assert AskingPlan(np.arange(n), n).most(np.ones((n, 1), bool), 0.1, 0.05) == max_losses(
        n, 0.1, 0.05
    )


@pytest.mark.parametrize("labels", [30, None])
def test_a_sequence_is_tested_up_to_its_first_failure(labels: int | None) -> None:
    plan, differs = AskingPlan(np.arange(90), labels), np.arange(90)[:, None] < [10, 12, 14]
    most = int(plan.most(differs, 0.1, 0.05)[0])

    def tested(*lost: int) -> Certified | NotCertified:
        return plan.certify(differs, np.arange(90)[:, None] < np.array(lost), 0.1, 0.05)

    found = tested(most - 1, most, most + 1)
    assert isinstance(found, Certified)
    assert (found.index, found.n, found.losses) == (1, 90, most)
    assert (found.differing, found.planned_labels) == (12, labels or 90)
    found = tested(most, most + 1, most)
    assert isinstance(found, Certified)
    assert (found.index, found.losses, found.differing) == (0, most, 10)
    found = tested(most + 1, 0, 0)
    assert isinstance(found, NotCertified)
    assert f"already loses {most + 1} of the 10 labelled of 10 replies" in found.reason
    assert f"at most {most} are allowed" in found.reason


@pytest.mark.parametrize(
    ("planned", "saved", "preferred"),
    [
        (5, {10: 20.0, 3: 20.4, 5: 20.3}, None),
        (5, {10: 20.0, 3: 20.6, 5: 20.4}, 3),
        (5, {10: 20.0, 3: 20.4, 5: 20.6}, 5),
        (1, {10: 20.0, 1: 21.0}, 1),
        (10, {10: 20.0, 6: 21.0}, 6),
    ],
)
def test_a_sample_has_to_lead_by_half_a_point(
    planned: int, saved: dict[int, float], preferred: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def walked(tests: Sequence[LabelTest], *_: Any, budget: int) -> Any:
        assert budget == planned
        (test,) = tests
        return SimpleNamespace(saving=lambda _: saved[int(test.differs.sum())])

    monkeypatch.setattr(adaptive_labels, "walk", walked)
    everyone = np.ones((7, 1), dtype=bool)
    found = preferred_sample(
        everyone, np.ones(1), (10, planned), (0.3, 0.05), rng=np.random.default_rng(1)
    )
    assert found == preferred
