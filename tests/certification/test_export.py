"""A calibrated rule as the content of a policy: where it probes, and what to expect of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stopadvisor.assessment.choice import Settings, choose
from stopadvisor.certification.calibration import Calibration, calibrate
from stopadvisor.certification.export import policy_terms
from stopadvisor.certification.verification import scorer_of
from stopadvisor.ground.fields import plain
from stopadvisor.policy.shown import where_of
from stopadvisor.policy.terms import PolicyTerms, trigger_of
from stopadvisor.probes.trajectories import profile, trajectory
from stopadvisor.rules.families import FIXED_BUDGET
from stopadvisor.rules.schedules import GridSchedule, schedule_of
from stopadvisor.runs.sources import Source
from tests.frozen import drawn_source, look_of
from tests.populations import POPULATIONS, sequence

MIXED = POPULATIONS[0]
SETTINGS = Settings(alpha=0.2, families=("confidence",))
BUDGETS = MIXED.budgets


@pytest.fixture(scope="module")
def source() -> Source:
    return drawn_source(MIXED, 400, "source")


def calibrated(source: Source, family: str, schedule: GridSchedule) -> Calibration:
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
        ("confidence", GridSchedule((0, *BUDGETS[3:6])), "grid", [0, *BUDGETS[3:6]]),
        ("learned", GridSchedule((128, 256, 384, 512)), "stride", []),
        ("agreement", GridSchedule((128, 256, 384, 1024), 1024), "grid", [128, 256, 384, 1024]),
        (FIXED_BUDGET, GridSchedule(BUDGETS), "none", []),
    ],
)
def test_the_content_stops_where_the_rule_does(
    source: Source, family: str, schedule: GridSchedule, kind: str, budgets: list[int]
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
        assert schedule_of(trigger_of(terms)) == GridSchedule((stop,), stop)
        assert where_of(terms) == f"at {stop} thinking tokens, without a probe before"
        assert policy.asking.before is False
    else:
        assert schedule_of(trigger_of(terms)) == schedule
        assert policy == rule.scorer
    positions = [
        [
            scorer.view(fresh).budgets.tolist()[stop] if stop < len(scorer.schedule) else None
            for stop in scorer.curve(scorer.view(fresh), np.array([rule.threshold]))
            .stops(0)
            .tolist()
        ]
        for scorer in (policy, rule.scorer)
    ]
    assert positions[0] == positions[1]
    assert terms.order == tuple(rule.order.tolist())
    assert (
        scorer_of(terms, fresh, along_order=True)
        .curve(rule.scorer.view(fresh), rule.order)
        .low.tolist()
        == rule.scorer.curve(rule.scorer.view(fresh), rule.order).low.tolist()
    )


def test_without_a_test_part_nothing_is_said_of_one(source: Source) -> None:
    alone = replace(source, parts=np.where(source.parts == 2, 1, source.parts))
    found = calibrated(alone, "confidence", GridSchedule(BUDGETS))
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
