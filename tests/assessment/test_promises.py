"""Promises agree with choosing at each of their alphas, and rules are measured once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stopadvisor.assessment.candidates import candidates
from stopadvisor.assessment.choice import Choice, Settings, choose
from stopadvisor.assessment.limits import Shares
from stopadvisor.assessment.promises import Promise, label_needs, promises, proposed
from stopadvisor.assessment.rated import RulesOnFit, certification_probability
from stopadvisor.assessment.sequences import FitData, ThresholdSequence
from stopadvisor.ground.errors import NothingToChoose
from stopadvisor.probes.outcomes import FitQuestions
from stopadvisor.rules.losses import DIFFERS, LOST
from stopadvisor.stats.adaptive_labels import LabelTest, walk
from stopadvisor.stats.bounds import labels_needed, max_losses
from tests.populations import FREE_FORM, renamed, without_gold

N = 240
SETTINGS = Settings(families=("confidence", "learned", "fixed-budget"))


@pytest.fixture(scope="module")
def fit() -> FitQuestions:
    return FREE_FORM.draw(200, np.random.default_rng(3)).as_fit()


@pytest.fixture(scope="module")
def rules(fit: FitQuestions) -> RulesOnFit:
    return RulesOnFit.measure(fit, SETTINGS)


@pytest.fixture(scope="module")
def offered(rules: RulesOnFit) -> tuple[Promise, ...]:
    return promises(rules, N, SETTINGS)


def chosen(questions: FitQuestions | RulesOnFit, alpha: float) -> Choice:
    return choose(questions, N, replace(SETTINGS, alpha=alpha))


def test_a_promise_is_what_choosing_at_its_risk_says(
    rules: RulesOnFit, offered: tuple[Promise, ...]
) -> None:
    """And with the labels named a certificate comes nine times in ten."""
    for promise in offered[1:]:
        choice = chosen(rules, promise.alpha)
        point, rule = choice.advised_point, choice.advised
        assert point is not None
        assert point.fit_accuracy is not None
        assert rule is not None
        assert promise.saving_pct == point.expected_saving_pct > 0
        points = 100 * (point.fit_accuracy - choice.full_accuracy)
        assert promise.accuracy_points == pytest.approx(points)
        labels = promise.labels_for_90
        assert labels is not None
        at_n, *enough, too_few = (
            certification_probability(rule, choice.settings, (n,))
            for n in (N, *range(labels, labels + 20), labels - 1)
        )
        assert promise.probability == at_n > 0
        assert min(enough) >= 0.9 > too_few


def test_labels_are_counted_for_the_first_rule(
    rules: RulesOnFit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one that loses less is tested at what the first leaves of delta."""
    settings = replace(SETTINGS, alpha=0.15)
    first, second = rules.ranked(N, settings, None).tested
    lost = {id(first.sequence): 0.06, id(second.sequence): 0.0}
    shares = property(lambda rule: (Shares(lost.get(id(rule), 0.0)),))
    monkeypatch.setattr(ThresholdSequence, "useful_shares", shares)
    promise = promises(rules, N, settings)[-1]
    wanted = labels_needed(0.15, 0.05, expected_risk=0.06, power_wanted=0.9)
    assert promise.labels_for_90 == wanted


def test_a_risk_that_no_test_can_hold_buys_nothing(offered: tuple[Promise, ...]) -> None:
    first = offered[0]  # 240 questions cannot certify 1 %
    assert (first.saving_pct, first.accuracy_points, first.probability) == (0, 0, 0)
    assert first.labels_for_90 is not None
    assert first.labels_for_90 > N


def test_a_risk_above_the_accuracy_is_no_promise(
    rules: RulesOnFit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stopadvisor.assessment.promises.PROMISES", (0.05, 0.99))
    assert [promise.alpha for promise in promises(rules, N, SETTINGS)] == [0.05]
    monkeypatch.setattr("stopadvisor.assessment.promises.PROMISES", (0.99,))
    with pytest.raises(NothingToChoose, match=r"always being wrong would keep a promise of 99%"):
        promises(rules, N, SETTINGS)


@pytest.mark.slow
def test_rules_are_measured_once_and_chosen_as_without(
    fit: FitQuestions, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(fit: FitData, *rest: Any) -> Iterator[ThresholdSequence]:
        calls.append(fit)
        return candidates(fit, *rest)

    monkeypatch.setattr("stopadvisor.assessment.rated.candidates", counted)
    rules = RulesOnFit.measure(fit, SETTINGS)
    promises(rules, N, SETTINGS)
    again = chosen(rules, 0.05)
    assert len(calls) == 1
    alone = chosen(fit, 0.05)
    assert again.advised_point == alone.advised_point
    assert again.saving_lower == alone.saving_lower
    assert [each.scorer for each in again.sequences] == [each.scorer for each in alone.sequences]


@pytest.mark.parametrize(
    ("rows", "alpha"),
    [
        ([(0.01, 20.0, 0.4), (0.05, 30.0, 0.95), (0.10, 40.0, 0.99)], 0.05),
        ([(0.01, 20.0, 0.4), (0.05, 30.0, 0.8), (0.10, 40.0, 0.7)], 0.05),
        ([(0.01, 0.0, 1.0), (0.05, 30.0, 0.9)], 0.05),
        ([(0.01, 0.0, 0.0), (0.05, 0.0, 0.0)], 0.05),
    ],
)
def test_the_smallest_sure_risk_is_proposed_else_the_likeliest(
    rows: list[tuple[float, float, float]], alpha: float
) -> None:
    offered = [Promise(a, saving, 0.0, probability, 100) for a, saving, probability in rows]
    assert proposed(offered).alpha == alpha


# --- Gold labels that will be needed, as fit questions without gold predict -----------------------

MANY = 600
DIFFERING = Settings(alpha=0.05, families=("confidence",), loss="differs")


@pytest.fixture(scope="module")
def choice() -> Choice:
    fit = FREE_FORM.draw(600, np.random.default_rng(1))
    return choose(without_gold(fit).as_fit(), MANY, DIFFERING)


def test_the_estimate_is_what_labelling_then_takes(
    choice: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = choice.advised
    assert sequence is not None
    most = max_losses(MANY, DIFFERING.alpha, DIFFERING.delta)
    savings = 100 * (1 - sequence.costs / choice.fit.full_cost.sum())
    asked, saved, shares = [], [], []
    for seed in range(10):
        table = renamed(FREE_FORM.draw(MANY, np.random.default_rng(100 + seed)), "c")
        view = sequence.scorer.view(table)
        curve = sequence.scorer.curve(view, sequence.thresholds)
        differs = curve.each(DIFFERS.of(view) > 0)
        lost = curve.each(LOST.of(view) > 0)
        test = LabelTest(differs, lost, most, savings)
        found = walk([test], np.zeros(MANY, dtype=np.bool_), np.arange(MANY), budget=None)
        asked.append(found.asked.size)
        saved.append(found.saving([test]))
        shares.append(lost[found.asked].any(axis=1).mean())
    share = float(np.mean(shares))
    monkeypatch.setattr("stopadvisor.assessment.promises._SHARES_LOST", (share,))
    nothing, some = label_needs(choice)
    assert (nothing.lost_of_differing, nothing.labels) == (None, 0)
    assert 0.7 < some.labels / np.mean(asked) < 1.4
    assert abs(some.saving_pct - np.mean(saved)) < 4
    assert some.saving_pct > nothing.saving_pct + 1


def test_the_fewer_are_lost_the_bolder_the_rule(choice: Choice) -> None:
    needs = label_needs(choice)
    assert [need.lost_of_differing for need in needs] == [None, 1 / 2, 1 / 4, 1 / 8]
    savings = [need.saving_pct for need in needs]
    assert savings == sorted(savings)
    # A sample of half as many labels saves less than all of them, and more than none.
    halves = [need.half_saving_pct for need in needs]
    assert halves[0] is None
    for need in needs[1:]:
        assert need.half_saving_pct is not None
        assert savings[0] < need.half_saving_pct < need.saving_pct


def test_there_is_no_estimate_where_gold_is_there_or_nothing_is_advised(choice: Choice) -> None:
    fit = FREE_FORM.draw(150, np.random.default_rng(1)).as_fit()
    assert label_needs(choose(fit, MANY, replace(DIFFERING, loss="lost"))) == ()
    assert label_needs(replace(choice, advised=None)) == ()
    assert label_needs(replace(choice, n_calibration=10)) == ()
