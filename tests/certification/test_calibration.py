"""Certifying on calibration questions what was chosen on fit questions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from stopadvisor.assessment.choice import Choice, Settings, choose
from stopadvisor.assessment.rated import SIMPLER_WITHIN, counted_labels, rank_of
from stopadvisor.certification.calibration import Calibration, calibrate, recalibrate
from stopadvisor.certification.looks import check_questions, require_gold
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.probes.grouping import calibration_rows, has_groups
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.rules.losses import LOST, Guarantee
from stopadvisor.stats.bounds import (
    Certified,
    NotCertified,
    labels_needed,
    max_losses,
    unspent,
    upper_limit,
)
from tests.frozen import with_groups
from tests.populations import POPULATIONS, drawn, regraded, without_gold
from tests.replay import stops

MIXED = POPULATIONS[0]


@pytest.fixture(scope="module")
def choice() -> Choice:
    return choose(drawn(160, 0, "f").as_fit(), 160, Settings(alpha=0.15))


def lost_by_replay(table: OpenQuestions, sequence: Any, threshold: float) -> int:
    """Losses of the frozen rule, one probe at a time through the stepper."""
    view, lost = sequence.scorer.view(table), 0
    for i, stop in enumerate(stops(table, sequence.scorer, threshold)):
        if stop < view.n_checkpoints:
            column = table.budgets.tolist().index(int(view.budgets[stop]))
            lost += table.full_correct[i] and not table.correct[i, column]
    return int(lost)


def test_the_certificate_is_about_the_rule_that_is_exported(choice: Choice) -> None:
    table = drawn(160, 1)
    found = calibrate(choice, table.as_calibration())
    assert found.rule is not None
    assert found.refusal is None
    certificate = found.rule.certificate
    which = [c.scorer is found.rule.scorer for c in choice.sequences].index(True)
    sequence, delta = choice.sequences[which], choice.deltas(160)[which]
    assert found.rule.threshold == sequence.thresholds[certificate.index]
    assert np.array_equal(found.rule.order, sequence.thresholds)
    lost = lost_by_replay(table, sequence, found.rule.threshold)
    assert (certificate.losses, certificate.n) == (lost, 160)
    assert certificate.delta == delta
    assert certificate.upper == upper_limit(lost, 160, delta)
    assert lost <= max_losses(160, 0.15, delta)


def test_every_chain_is_tested_in_its_order(choice: Choice) -> None:
    table = drawn(160, 2)
    found = calibrate(choice, table.as_calibration())
    deltas = choice.deltas(160)
    assert deltas == (0.05, unspent(160, 0.15, 0.05))
    rows = zip(choice.sequences, deltas, found.tested, strict=True)
    for sequence, delta, (family, result) in rows:
        assert family == sequence.scorer.family
        assert isinstance(result, Certified)
        most = max_losses(160, 0.15, delta)
        view = sequence.scorer.view(table)
        curve = sequence.scorer.curve(view, sequence.thresholds)
        walk = curve.totals(LOST.of(view))[0]
        assert max(walk[: result.index + 1]) <= most
        assert result.index + 1 == walk.size or walk[result.index + 1] > most
        for index in range(result.index, min(result.index + 2, walk.size)):
            threshold = float(sequence.thresholds[index])
            assert walk[index] == lost_by_replay(table, sequence, threshold)


def test_too_small_a_rest_is_no_second_test(choice: Choice) -> None:
    # 19 without a loss exclude 0.15 at 0.05, and leave next to nothing of it.
    assert [max_losses(19, 0.15, delta) for delta in choice.deltas(19)] == [0, -1]
    found = calibrate(choice, drawn(19, 2).as_calibration())
    assert [family for family, _ in found.tested] == [choice.sequences[0].scorer.family]
    assert len(choice.sequences) == 2
    # Of 25 half of it is left, which a second test without a loss can pass.
    assert [max_losses(25, 0.15, delta) for delta in choice.deltas(25)] == [0, 0]
    assert len(calibrate(choice, drawn(25, 2).as_calibration()).tested) == 2


def test_of_two_certified_rules_the_cheaper_is_exported_unless_the_simpler_is_near(
    choice: Choice,
) -> None:
    for seed in range(40, 50):
        found = calibrate(choice, drawn(160, seed).as_calibration())
        savings = {}
        for sequence, (family, result) in zip(choice.sequences, found.tested, strict=True):
            assert isinstance(result, Certified)
            cost = float(sequence.costs[result.index])
            savings[family] = 100 * (1 - cost / float(choice.fit.full_cost.sum()))
        best = max(savings.values())
        first = max(savings, key=savings.__getitem__)
        lead = choice.margin if rank_of(first) == 2 else SIMPLER_WITHIN
        near = [family for family in savings if savings[family] >= best - lead]
        assert found.rule is not None
        assert found.rule.scorer.family == min(near, key=rank_of)
        assert found.rule.fit_saving_pct == pytest.approx(savings[found.rule.scorer.family])


@pytest.mark.slow
def test_both_sequences_together_are_false_with_at_most_delta(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every threshold is bad here, most of them only just: whatever is certified is false."""
    advice = "stopadvisor.certification.calibration.counted_labels"
    monkeypatch.setattr(advice, lambda *_: None)  # takes most of the time
    families = ("confidence", FIXED_BUDGET)
    chosen = choose(drawn(200, 30, "f").as_fit(), 100, Settings(alpha=0.15, families=families))
    truth = drawn(40_000, 31)
    bad = []
    for sequence in chosen.sequences:
        view = sequence.scorer.view(truth)
        curve = sequence.scorer.curve(view, sequence.thresholds)
        risk = curve.totals(LOST.of(view))[0] / 40_000
        first = int(np.flatnonzero(risk > 0.15)[0])
        costs = np.full(risk.size - first, 1.0)  # as cheap as can be, so that it is exported
        bad.append(
            replace(
                sequence,
                thresholds=sequence.thresholds[first:],
                losses=sequence.losses[first:],
                costs=costs,
            )
        )
    assert len(bad) == 2
    tempted = replace(chosen, sequences=tuple(bad))
    rng = np.random.default_rng(32)
    runs, false = 200, 0
    for _ in range(runs):
        fresh = MIXED.draw(100, rng)
        false += calibrate(tempted, fresh.as_calibration()).rule is not None
    assert 0 < false <= stats.binom.ppf(0.999, runs, 0.05)


def test_fit_and_calibration_questions_never_meet(choice: Choice) -> None:
    table = drawn(20, 5).as_calibration()
    shared = replace(table, groups=(choice.fit.table.groups[7], *table.groups[1:]))
    for ask in (calibrate, check_questions):
        with pytest.raises(CalibrationError, match="1 calibration questions were used for fitting"):
            ask(choice, shared)
    again = replace(table, keys=(choice.fit.table.keys[7], *table.keys[1:]))
    with pytest.raises(CalibrationError, match="1 calibration questions were used for fitting"):
        check_questions(choice, again)


def test_one_trace_per_group_enters_the_bound_whatever_it_shows() -> None:
    table = drawn(12, 6)
    table = replace(
        table,
        groups=("a", "a", "b", "b", "c", "c", "d", "d", "e", "e", "f", "f"),
        samples=np.array([0, 1, 1, 0, 0, 0, 1, 2, 0, 1, 0, 1]),
    )
    # First of the first samples; group d has no first sample and stays out.
    assert calibration_rows(table).tolist() == [0, 3, 4, 8, 10]
    flipped = regraded(table, correct=~table.correct, natural_correct=~table.full_correct)
    assert calibration_rows(flipped).tolist() == [0, 3, 4, 8, 10]
    # Nor does the order of rows choose: an engine may write short traces first.
    backwards = table.take(np.arange(12)[::-1])
    assert (11 - calibration_rows(backwards)[::-1]).tolist() == [0, 3, 4, 8, 10]


def test_copies_of_a_question_are_a_group_and_its_samples_are_none() -> None:
    table = drawn(6, 1, "question ")
    assert has_groups(with_groups(table, 3))
    twice = table.take(np.repeat(np.arange(6), 2))
    assert not has_groups(replace(twice, samples=np.tile([1, 0], 6)))
    # The certificate counts copies once, so it is not about traffic that often repeats one.
    assert has_groups(replace(twice, ids=tuple(map(str, range(12)))))


def test_no_calibration_question_is_refused(choice: Choice) -> None:
    with pytest.raises(CalibrationError, match="no calibration questions"):
        calibrate(choice, drawn(3, 7).take(np.zeros(3, dtype=bool)).as_calibration())


def test_many_truncated_traces_need_to_be_allowed(choice: Choice) -> None:
    table = drawn(100, 8)
    cut = replace(table, truncated=np.arange(100) < 11)
    with pytest.raises(CalibrationError, match=r"11.0% of the traces were cut off"):
        calibrate(choice, cut.as_calibration())
    few = replace(table, truncated=np.arange(100) < 10)
    assert calibrate(choice, few.as_calibration()).truncated_share == pytest.approx(0.10)
    allowed = replace(choice, settings=replace(choice.settings, allow_truncated=True))
    assert calibrate(allowed, cut.as_calibration()).truncated_share == pytest.approx(0.11)


def test_too_few_questions_are_refused_with_the_fewest_that_would_do(choice: Choice) -> None:
    found = calibrate(choice, drawn(18, 22).as_calibration()).refusal
    assert found is not None
    assert "18 calibration questions cannot exclude" in found.reason
    assert (found.labels_needed, found.assumed_risk) == (19, 0.0)  # they exclude 0.15 at 0.05


@pytest.mark.parametrize("saved", [0.0, 0.005])
def test_a_certified_rule_is_exported_where_it_saves_the_least_thing(
    choice: Choice, saved: float
) -> None:
    cost = (1 - saved) * choice.fit.full_cost.sum()
    first = choice.sequences[0]
    costs = np.append(np.full(first.costs.size - 1, cost), 0.0)  # the boldest, which fails, saves
    asked = replace(choice, sequences=(replace(first, costs=costs),))
    found = calibrate(asked, drawn(160, 1).as_calibration())
    assert isinstance(found.tested[0][1], Certified)
    assert found.tested[0][1].index < costs.size - 1
    assert (found.rule is not None) is (saved > 0)


def test_where_every_answer_was_lost_no_number_of_labels_would_do(choice: Choice) -> None:
    table = regraded(drawn(160, 3), natural_correct=np.ones(160, dtype=bool))
    lost = regraded(
        replace(table, trace_tokens=np.full(160, 4000)), correct=np.zeros_like(table.correct)
    )
    sequence = choice.sequences[0]
    found = recalibrate(
        sequence.scorer, sequence.thresholds[-1:], lost.as_calibration(), choice.settings
    )
    assert found.refusal is not None
    assert (found.refusal.labels_needed, found.refusal.assumed_risk) == (None, 0.999)
    # 19 could exclude 0.15 with no loss, so that what they lost is the reason.
    fewest = lost.take(np.arange(19)).as_calibration()
    found = recalibrate(sequence.scorer, sequence.thresholds[-1:], fewest, choice.settings)
    assert found.refusal is not None
    assert found.refusal.assumed_risk == 0.999
    # As where they were lost on fit questions, whatever calibration shows.
    all_lost = replace(sequence, losses=np.full_like(sequence.losses, choice.n_fit))
    few = drawn(160, 1).as_calibration()
    assert calibrate(replace(choice, sequences=(all_lost,)), few).rule is not None


def test_a_refusal_for_costs_names_no_number_of_labels() -> None:
    dear = drawn(160, 10, "f")
    dear = replace(dear, probe_tokens=np.full(dear.probe_tokens.shape, 4000.0))
    # Neither can alpha be shown with so few questions, nor would more of them make probes cheap.
    found = calibrate(
        choose(dear.as_fit(), 15, Settings(alpha=0.1)), drawn(15, 11).as_calibration()
    )
    assert found.refusal is not None
    assert "its probes eat the saving" in found.refusal.reason
    assert found.refusal.labels_needed is None
    assert all(isinstance(r, NotCertified) and r.labels_needed is None for _, r in found.tested)


def moved(choice: Choice, table: OpenQuestions, **settings: Any) -> Calibration:
    """The first sequence, as if it had been fitted elsewhere."""
    scorer, order = choice.sequences[0].scorer, choice.sequences[0].thresholds
    asked = replace(choice.settings, **settings)
    return recalibrate(scorer, order, table.as_calibration(), asked)


def test_a_rule_from_elsewhere_is_one_chain_at_the_whole_of_delta(choice: Choice) -> None:
    table = drawn(160, 15)
    rule = moved(choice, table).rule
    assert rule is not None
    assert rule.certificate.delta == 0.05
    lost = lost_by_replay(table, choice.sequences[0], rule.threshold)
    assert rule.certificate.losses == lost <= max_losses(160, 0.15, 0.05)
    few = moved(choice, drawn(10, 16))
    assert (few.rule, few.refusal is None) == (None, False)


def test_a_rule_from_elsewhere_that_saves_nothing_here_is_withheld(choice: Choice) -> None:
    table, scorer, never = drawn(160, 17), choice.sequences[0].scorer, np.array([1e9])
    dear = moved(choice, replace(table, probe_tokens=np.full(table.probe_tokens.shape, 4000.0)))
    # And where it costs exactly as much as full thinking.
    free = replace(table, probe_tokens=np.zeros(table.probe_tokens.shape), suffix_tokens=0)
    view = scorer.view(free)
    costs = scorer.curve(view, never).totals(scorer.costs(view, choice.settings.costing))
    assert costs[0, 0] == choice.settings.costing.full(free).sum()
    same = recalibrate(scorer, never, free.as_calibration(), choice.settings)
    for found in (dear, same):
        assert found.rule is None
        assert found.refusal is not None
        assert "costs more than full thinking: its probes eat the saving" in found.refusal.reason


def test_a_rule_from_elsewhere_takes_an_alpha_below_the_accuracy(choice: Choice) -> None:
    """At exactly the accuracy, always being wrong would meet it."""
    table = drawn(160, 15)
    half = regraded(table, correct=table.correct, natural_correct=np.arange(160) % 2 == 0)
    for alpha, refused in ((0.5, True), (0.49, False)):
        found = moved(choice, half, alpha=alpha).refusal
        assert (found is not None and "must be below the full-thinking" in found.reason) == refused


def test_several_limits_from_elsewhere_say_how_many_labels_would_do(choice: Choice) -> None:
    sequence, table = choice.sequences[0], drawn(9, 15)
    bold = sequence.thresholds[-1:]  # stops the most, and saves
    settings = replace(choice.settings, alpha=0.5, also=(Guarantee("differs", 0.95),))
    found = recalibrate(sequence.scorer, bold, table.as_calibration(), settings)
    view = sequence.scorer.view(table)
    curve = sequence.scorer.curve(view, bold)
    lost = float(curve.totals(settings.counted.of(view))[0, 0]) / 9
    assert found.refusal is not None
    assert found.refusal.assumed_risk == pytest.approx(lost)
    needed = counted_labels(settings, 0.05, lost)
    assert found.refusal.labels_needed == needed
    assert needed is not None


def test_labels_are_counted_at_the_first_threshold_that_costs_less(choice: Choice) -> None:
    """Not at one that costs as much as full thinking to the last digit."""
    sequence, full = choice.sequences[0], float(choice.fit.full_cost.sum())
    costs = np.full_like(sequence.costs, full)
    costs[-1] = full / 2
    only = replace(sequence, costs=costs, losses=np.zeros_like(sequence.losses))
    table = drawn(160, 19)
    view = sequence.scorer.view(table)
    curve = sequence.scorer.curve(view, sequence.thresholds)
    lost = curve.totals(LOST.of(view))[0] / 160
    assert lost[-1] > lost[0]
    settings = replace(
        choice.settings,
        alpha=float(lost[-1]) + 0.02,  # that much is not shown, while less is
    )
    found = calibrate(replace(choice, sequences=(only,), settings=settings), table.as_calibration())
    assert isinstance(found.tested[0][1], Certified)
    assert found.refusal is not None
    assert found.refusal.assumed_risk is not None
    assert found.refusal.assumed_risk == pytest.approx(lost[-1])
    needed = labels_needed(settings.alpha, 0.05, expected_risk=found.refusal.assumed_risk)
    assert needed is not None
    assert found.refusal.labels_needed == needed


def test_a_promise_on_what_is_right_takes_gold_and_one_on_replies_none() -> None:
    table = drawn(20, 20)
    lost, differs = Settings(alpha=0.15), Settings(alpha=0.15, loss="differs")
    for settings in (lost, differs):
        require_gold(settings, table)
    require_gold(differs, without_gold(table))
    for settings in (lost, replace(differs, also=(Guarantee("drop", 0.1),))):
        with pytest.raises(CalibrationError, match="needs gold for every question"):
            require_gold(settings, without_gold(table))
