"""Two traces a question under one exact test: counts, certificate, verification, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from stopadvisor.assessment.choice import Choice, Settings, choose
from stopadvisor.assessment.limits import Shares, labels_for, most_of, pass_probability
from stopadvisor.assessment.rated import Imitation
from stopadvisor.certification.calibration import calibrate, counts_of
from stopadvisor.certification.certify import refused_beforehand
from stopadvisor.certification.looks import counted_traces
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.policy.shown import certificate_of
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.rules.losses import LOST, Guarantee
from stopadvisor.stats.bounds import Certified, last_passed, max_losses
from stopadvisor.stats.intervals import paired_difference
from stopadvisor.stats.trinomial import limit_of_pairs, most_lost, risk_of_pairs
from tests.frozen import frozen, source_of, verified
from tests.policy_content import terms_of
from tests.populations import POPULATIONS, renamed

MIXED = POPULATIONS[0]
SETTINGS = Settings(alpha=0.15, families=("confidence",))


def twice(n: int, seed: int, prefix: str = "c", *, same: float = 0.3) -> OpenQuestions:
    """Questions with two traces each; of a share the second is the first again."""
    rng = np.random.default_rng(seed)
    table = renamed(MIXED.draw(2 * n, rng), prefix)
    again = np.where(rng.random(n) < same, np.arange(n), np.arange(n, 2 * n))
    names = table.ids[:n] * 2
    both = table.take(np.concatenate([np.arange(n), again]))
    samples = np.repeat([0, 1], n)
    return replace(both, ids=names, keys=names, groups=names, samples=samples)


@pytest.fixture(scope="module")
def choice() -> Choice:
    return choose(renamed(MIXED.draw(200, np.random.default_rng(0)), "f").as_fit(), 300, SETTINGS)


def certified(choice: Choice, table: OpenQuestions) -> Certified:
    result = calibrate(choice, table.as_calibration()).tested[0][1]
    assert isinstance(result, Certified)
    return result


def test_the_certificate_counts_pairs_of_replies(choice: Choice) -> None:
    n, table = 300, twice(300, 1)
    found = calibrate(choice, table.as_calibration())
    result, sequence = certified(choice, table), choice.sequences[0]
    view = sequence.scorer.view(table)
    stops = sequence.scorer.curve(view, sequence.thresholds).stops(result.index)
    lost = (
        view.full_correct
        & ~np.column_stack([view.correct_online, view.full_correct])[np.arange(2 * n), stops]
    )
    lost = lost.reshape(2, n)
    counts = [int((lost.sum(axis=0) == k).sum()) for k in (2, 1, 0)]
    assert [result.both, result.one, result.none] == counts
    assert (result.n, result.losses, found.traces) == (n, lost.sum(), 2)
    assert result.upper == risk_of_pairs(counts[0], counts[2], n, 0.05) <= SETTINGS.alpha
    assert len(found.tested) == 1  # what the test leaves of delta is not known
    assert found.first.n_questions == n
    assert not found.first.samples.any()


def test_few_pairs_are_refused_beforehand(choice: Choice) -> None:
    found = refused_beforehand(choice, twice(9, 1).sealed())
    assert found is not None
    assert "9 calibration questions cannot show lost=0.15 at confidence 0.95" in found.reason
    assert refused_beforehand(choice, twice(60, 1).sealed()) is None


def test_the_order_of_rows_counts_nothing(choice: Choice) -> None:
    table = twice(300, 1)
    mixed = table.take(np.random.default_rng(2).permutation(table.n_questions))
    assert certified(choice, mixed) == certified(choice, table)


def test_a_drop_counts_the_first_trace_alone(choice: Choice) -> None:
    table, sequence = twice(100, 3), choice.sequences[0]
    drop = replace(SETTINGS, loss="drop")
    assert counted_traces(table, drop).shape == (1, 100)
    both = replace(drop, also=(Guarantee("lost", 0.1),))
    assert counted_traces(table, both).shape == (2, 100)
    view = sequence.scorer.view(table)
    curve = sequence.scorer.curve(view, sequence.thresholds)
    found = counts_of(curve, view, both, 2)
    assert [each.traces for each in found] == [1, 2]
    first = sequence.scorer.view(table.take(table.samples == 0))
    alone = counts_of(sequence.scorer.curve(first, sequence.thresholds), first, drop)
    np.testing.assert_array_equal(found[0].lost, alone[0].lost)
    np.testing.assert_array_equal(found[0].gained, alone[0].gained)


def test_mixtures_and_equal_traces_are_refused_in_one_line(choice: Choice) -> None:
    table = twice(100, 4)
    one_left_out = table.take(np.arange(199))
    with pytest.raises(CalibrationError, match=r"^99 of 100 questions have a second trace.*$"):
        calibrate(choice, one_left_out.as_calibration())
    with pytest.raises(CalibrationError, match=r"^the second trace of every question is the first"):
        calibrate(choice, twice(100, 4, same=1.0).as_calibration())
    alone = replace(SETTINGS, loss="drop")
    assert counted_traces(one_left_out, alone).shape == (1, 100)


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.5, 0.7])
@pytest.mark.parametrize("share_both", [0.0, 0.5, 1.0])
def test_a_risk_of_alpha_is_excluded_no_more_often_than_delta(
    alpha: float, share_both: float
) -> None:
    """By the distribution itself, whatever part of the lost replies comes in pairs."""
    n, delta = 80, 0.05
    both = alpha * share_both + max(0.0, 2 * alpha - 1) * (1 - share_both)
    one = 2 * (alpha - both)
    most = most_of(Guarantee("lost", alpha), n, delta, 2)
    lost, none = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    inside = (lost + none <= n) & (lost <= most[none])
    counts = np.column_stack([lost[inside], n - lost[inside] - none[inside], none[inside]])
    chance = stats.multinomial.pmf(counts, n, [both, one, 1 - both - one]).sum()
    assert chance <= delta + 1e-9
    if share_both == 0.5:
        assert chance > delta / 10  # and the test is not empty


def test_labels_for_two_traces_lie_between_one_trace_and_half() -> None:
    guarantee, delta = Guarantee("lost", 0.05), 0.05
    one = labels_for(guarantee, delta, Shares(0.02))
    same, apart = (
        labels_for(guarantee, delta, Shares(0.02, lost_again=again), traces=2)
        for again in (1.0, 0.02)
    )
    assert one == 286  # with a power of 80 %
    assert same is not None
    assert apart is not None
    assert 0.4 * one < apart < 0.75 * one
    assert 0.85 * one < same < 1.25 * one
    assert pass_probability(guarantee, apart, delta, Shares(0.02, lost_again=0.02), 2) >= 0.8
    assert limit_of_pairs(0.5) < 0
    assert most_lost(60, limit_of_pairs(0.05), 0.05)[60] == 0


def test_no_number_is_named_beyond_the_largest_that_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stopadvisor.assessment.limits.MOST_QUESTIONS", 64)
    assert labels_for(Guarantee("lost", 0.05), 0.05, Shares(0.02), traces=2) is None


def test_forecasts_count_two_traces_where_calibration_will(choice: Choice) -> None:
    """They foresee what calibrations gain by a second trace that loses half of it again."""
    n, fit, sequence, rng = 200, choice.fit, choice.sequences[0], np.random.default_rng(3)
    lost = sequence.curve.each(LOST.of(sequence.view) > 0)
    saving = 100 * (1 - sequence.costs / fit.full_cost.sum())
    most = most_of(Guarantee("lost", SETTINGS.alpha), n, SETTINGS.delta, 2)
    reached = []
    for _ in range(400):
        rows, others = rng.integers(len(lost), size=(2, n))
        again = lost[np.where(rng.random(n) < 0.45, rows, others)]
        one, two = lost[rows], (lost[rows] & again).sum(axis=0)
        none = (~lost[rows] & ~again).sum(axis=0)
        alone = last_passed(one.sum(axis=0) <= max_losses(n, SETTINGS.alpha, SETTINGS.delta))
        reached.append((saving[alone], saving[last_passed(two <= most[none])]))
    settings = [replace(SETTINGS, traces=traces) for traces in (1, 2)]
    expected = [Imitation.draw(fit, n, each).saving_pct(sequence) for each in settings]
    gained = np.diff(np.mean(reached, axis=0))[0]
    assert np.diff(expected)[0] == pytest.approx(gained, abs=0.6)
    assert gained > 1
    shares, guarantee = Shares(0.1), Guarantee("lost", SETTINGS.alpha)
    passes = [pass_probability(guarantee, n, 0.05, shares, traces) for traces in (1, 2)]
    assert 0.5 < passes[0] < passes[1] - 0.1


@pytest.fixture(scope="module")
def policy() -> dict[str, Any]:
    return frozen(source_of(twice(900, 5, "s"), "twice"), SETTINGS)


def test_the_policy_names_the_pairs(policy: dict[str, Any]) -> None:
    certificate = policy["certificate"]
    both, one, none = (certificate[name] for name in ("both", "one", "none"))
    assert certificate["traces"] == 2
    assert both + one + none == certificate["n"] == policy["expected"]["calibration_n"]
    assert certificate["losses"] == 2 * both + one
    assert policy["expected"]["calibration_risk"] == certificate["losses"] / (2 * certificate["n"])
    shown = certificate_of(terms_of(policy))
    assert shown is not None
    assert "Each calibration question was answered twice, and both replies counted." in shown.claim


def test_verify_counts_two_traces_of_fresh_questions(policy: dict[str, Any]) -> None:
    policy = policy | {"calibration_features": None}  # drift is not looked at here
    n, table = 300, twice(300, 6, "v", same=0.0)
    found, single = (verified(policy, table, alone=alone) for alone in (False, True))
    assert (found.n, found.traces, found.n_repeated) == (n, 2, 0)
    assert (single.n, single.traces, single.n_repeated) == (n, None, n)
    assert found.lower < found.risk == found.losses / (2 * n) < found.upper
    assert found.upper - found.lower < single.upper - single.lower
    for alpha, verdict in ((0.25, "confirmed"), (0.01, "contradicted")):
        promise = policy | {"certificate": policy["certificate"] | {"alpha": alpha}}
        assert verified(promise, table).verdict == verdict


def test_second_traces_are_no_further_questions(policy: dict[str, Any]) -> None:
    """What is said of categories and of drift takes independent questions."""
    table = twice(200, 6, "v", same=0.5)
    names = tuple(["algebra", "words"][i % 2] for i in range(200))
    table = replace(table, categories=names * 2)
    found = [verified(policy, table, alone=alone) for alone in (False, True)]
    assert [each.traces for each in found] == [2, None]
    assert [row.n for row in found[0].categories] == [100, 100]
    assert found[0].categories == found[1].categories
    assert found[0].drift == found[1].drift


def test_the_accuracy_interval_holds_where_two_traces_say_the_same(policy: dict[str, Any]) -> None:
    """In simulations the same counts taken as replies of as many questions fail."""
    n, rng = 80, np.random.default_rng(1)
    table = twice(n, 6, "v", same=0.5)
    found = verified(policy, table)
    gains = found.accuracy_difference * 2 * n + found.losses
    assert found.accuracy_difference_ci95 == paired_difference(gains / 2, found.losses / 2, n)

    held = naive = 0
    for _ in range(400):
        first, other = rng.choice([1, 0, -1], size=(2, n), p=[0.04, 0.86, 0.10])
        both = np.concatenate([first, np.where(rng.random(n) < 0.8, first, other)])
        gains, losses = (both > 0).sum(), (both < 0).sum()
        low, high = paired_difference(gains / 2, losses / 2, n)
        held += low <= -0.06 <= high
        low, high = paired_difference(gains, losses, 2 * n)
        naive += low <= -0.06 <= high
    least = stats.binom.ppf(0.001, 400, 0.95)
    assert held >= least > naive
