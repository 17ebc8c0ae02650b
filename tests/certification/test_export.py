"""A calibrated rule as the content of a policy: where it probes, and what to expect of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stopadvisor.assessment.choice import Settings, choose
from stopadvisor.certification.calibration import Calibration, ExportedRule, calibrate
from stopadvisor.certification.export import (
    differs_limit,
    expectation,
    policy_terms,
    served_features,
)
from stopadvisor.certification.verification import scorer_of
from stopadvisor.ground.fields import plain
from stopadvisor.policy.shown import certificate_of, where_of
from stopadvisor.policy.terms import PolicyTerms, trigger_of
from stopadvisor.probes.grouping import calibration_rows
from stopadvisor.probes.outcomes import CalibrationQuestions
from stopadvisor.probes.trajectories import profile, trajectory
from stopadvisor.probes.trigger import ListedTrigger
from stopadvisor.rules.costs import PAPER_WEIGHTS, full_counts
from stopadvisor.rules.drift import drift_features
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.rules.outcomes import measure_rule
from stopadvisor.runs.sources import Source
from stopadvisor.stats.bounds import upper_limit
from stopadvisor.stats.intervals import saving_band
from tests.frozen import drawn_source, frozen, look_of, source_of, with_groups
from tests.policy_content import terms_of as read_terms
from tests.populations import POPULATIONS, drawn, renamed, sequence

MIXED = POPULATIONS[0]
SETTINGS = Settings(alpha=0.2, families=("confidence",))
ALONE = Settings(alpha=0.15, families=("confidence",))
BUDGETS = MIXED.budgets


@pytest.fixture(scope="module")
def source() -> Source:
    return drawn_source(MIXED, 400, "source")


def calibrated(source: Source, family: str, schedule: ListedTrigger) -> Calibration:
    """Calibration of one family on one schedule, whatever is the best."""
    choice = choose(source.part("fit"), source.counts()["calibration"], SETTINGS)
    alone = replace(choice, sequences=(sequence(choice.fit, family, schedule),))
    found = calibrate(alone, source.part("calibration").unseal().as_calibration())
    assert found.rule is not None, found.refusal
    return found


def terms_of(source: Source, calibration: Calibration) -> PolicyTerms:
    fit = source.part("fit")
    choice = choose(fit, source.counts()["calibration"], SETTINGS)
    shape = profile(trajectory(fit), rng=np.random.default_rng(0))
    look = look_of(SETTINGS)
    return policy_terms(source, choice.settings, choice.full_accuracy, calibration, shape, look)


@pytest.mark.parametrize(
    ("family", "schedule", "kind", "budgets"),
    [
        ("confidence", ListedTrigger((0, *BUDGETS[3:6])), "grid", [0, *BUDGETS[3:6]]),
        ("learned", ListedTrigger((128, 256, 384, 512)), "stride", []),
        ("agreement", ListedTrigger((128, 256, 384, 1024), 1024), "grid", [128, 256, 384, 1024]),
        (FIXED_BUDGET, ListedTrigger(BUDGETS), "none", []),
    ],
)
def test_the_content_stops_where_the_rule_does(
    source: Source, family: str, schedule: ListedTrigger, kind: str, budgets: list[int]
) -> None:
    found = calibrated(source, family, schedule)
    terms = terms_of(source, found)
    rule = found.rule
    assert rule is not None
    assert terms.trigger is not None
    assert terms.trigger.kind == kind
    assert list(terms.budgets) == budgets
    fresh = MIXED.draw(80, np.random.default_rng(1))
    policy = scorer_of(terms, fresh)
    if family == FIXED_BUDGET:
        stop = int(rule.threshold)
        assert trigger_of(terms) == ListedTrigger((stop,), stop)
        assert where_of(terms) == f"at {stop} thinking tokens, without a probe before"
        assert policy.asking.before is False
    else:
        assert trigger_of(terms) == schedule.as_stride()
        assert policy == replace(rule.scorer, schedule=schedule.as_stride())
    positions = [
        [
            view.budgets.tolist()[stop] if stop < view.n_checkpoints else None
            for stop in scorer.stops(view, rule.threshold).tolist()
        ]
        for scorer in (policy, rule.scorer)
        for view in (scorer.view(fresh),)
    ]
    assert positions[0] == positions[1]
    assert terms.order == tuple(rule.order.tolist())
    assert (
        scorer_of(terms, fresh, along_order=True)
        .curve(rule.scorer.view(fresh), rule.order)
        .low.tolist()
        == rule.scorer.curve(rule.scorer.view(fresh), rule.order).low.tolist()
    )


def test_a_policy_says_that_its_claim_is_of_groups() -> None:
    table = renamed(MIXED.draw(1200, np.random.default_rng(13)), "question ")
    source = source_of(with_groups(table, 3), "groups")
    policy = frozen(source, ALONE)
    certificate = certificate_of(read_terms(policy))
    assert certificate is not None
    assert (certificate.bound, certificate.group_claim) == ("exact", "groups")
    assert "stopping early turns the question drawn from the group" in certificate.claim
    assert certificate.n == len(set(source.part("calibration").groups))
    assert policy["expected"]["test_n"] == len(set(source.part("test").groups))
    single = source.table.take(calibration_rows(source.table)).unseal()
    assert "group_claim" not in frozen(source_of(single, "alone"), ALONE)["certificate"]


def test_without_a_test_part_nothing_is_said_of_one(source: Source) -> None:
    alone = replace(source, parts=np.where(source.parts == 2, 1, source.parts))
    found = calibrated(alone, "confidence", ListedTrigger(BUDGETS))
    told = terms_of(alone, found).expected
    assert told is not None
    assert told.calibration_n == alone.counts()["calibration"]
    assert not [name for name in plain(told) if name.startswith("test_")]


def test_without_a_rule_there_is_no_trigger(source: Source) -> None:
    hard = replace(SETTINGS, alpha=0.001)
    choice = choose(source.part("fit"), source.counts()["calibration"], hard)
    refused = calibrate(choice, source.part("calibration").unseal().as_calibration())
    terms = terms_of(source, refused)
    assert terms.kind == "full-budget"
    assert (terms.trigger, terms.budgets, terms.order) == (None, (), ())
    assert (terms.certificate, terms.expected) == (None, None)
    assert where_of(terms) is None


# --- What is expected of a rule, and of its traffic -----------------------------------------------


@pytest.fixture(scope="module")
def rule() -> ExportedRule:
    """The rule that `drawn(160, 1)` certifies."""
    chosen = choose(drawn(160, 0, "f").as_fit(), 160, ALONE)
    found = calibrate(chosen, drawn(160, 1).as_calibration()).rule
    assert found is not None
    return found


def test_the_rule_is_measured_on_the_questions_that_certified_it(rule: ExportedRule) -> None:
    table = drawn(160, 1).as_calibration()
    found, saving_band95 = expectation(rule, table, ALONE, seed=0)
    view = rule.scorer.view(table)
    assert found == measure_rule(rule.scorer, rule.threshold, table, ALONE.costing)
    assert found.losses == rule.certificate.losses
    low, high = saving_band95
    assert low < found.total_saving_pct < high
    assert high - low < 30
    assert expectation(rule, table, ALONE, seed=0)[1] == saving_band95
    costs = rule.scorer.costs(view, ALONE.costing)
    each = rule.scorer.curve(view, rule.order).totals(costs, np.arange(160), 160)
    band = saving_band(
        each, full_counts(table).weighed(PAPER_WEIGHTS), rng=np.random.default_rng(0)
    )
    assert saving_band95 == pytest.approx(band[:, rule.certificate.index])


def test_traces_of_one_group_are_drawn_together(rule: ExportedRule) -> None:
    """Five copies of each question say no more than one of each."""
    table = drawn(160, 1).as_calibration()
    five = table.take(np.repeat(np.arange(160), 5))
    assert len(set(five.groups)) == 160
    one, other = (expectation(rule, questions, ALONE, seed=0)[1] for questions in (table, five))
    assert other == pytest.approx(one)
    alone = replace(five, groups=tuple(f"g{k}" for k in range(800)))
    narrow = expectation(rule, alone, ALONE, seed=0)[1]
    assert narrow[1] - narrow[0] < 0.6 * (one[1] - one[0])


def test_of_many_questions_evenly_spaced_ones_are_stored(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = calibrated(source, "confidence", ListedTrigger(BUDGETS))
    entered = found.first
    assert found.rule is not None
    every = drift_features(found.rule.scorer, entered)
    n = entered.n_questions
    monkeypatch.setattr("stopadvisor.certification.export._MOST_SERVED", n)
    assert served_features(found.rule, entered).prompt_tokens == tuple(entered.prompt_tokens)
    monkeypatch.setattr("stopadvisor.certification.export._MOST_SERVED", 2)
    monkeypatch.setattr("stopadvisor.certification.export._MOST_STORED", 2)
    terms = terms_of(source, found)
    assert terms.served is not None
    assert terms.served.prompt_tokens == tuple(entered.prompt_tokens[[0, n - 1]])
    assert terms.calibration_features == tuple(map(tuple, every[[0, -1]].tolist()))


def test_yardsticks_are_read_at_the_certified_threshold(rule: ExportedRule) -> None:
    entered = drawn(300, 3).as_calibration()
    view = rule.scorer.view(entered)
    stops = rule.scorer.curve(view, np.array([rule.threshold])).stops(0)
    served = served_features(rule, entered)
    assert len(served.stop) == len(served.prompt_tokens) == 300
    stopped = stops < view.n_checkpoints
    assert [value != -1 for value in served.stop] == stopped.tolist()
    row = int(np.flatnonzero(stopped)[0])
    assert served.stop[row] == view.padded_positions[0, stops[row]]
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
