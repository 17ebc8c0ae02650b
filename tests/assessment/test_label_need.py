"""How many gold labels will be needed, as fit questions without gold predict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stopadvisor.assessment.choice import Choice, Settings, choose
from stopadvisor.assessment.promises import label_needs
from stopadvisor.rules.losses import DIFFERS, LOST
from stopadvisor.stats.adaptive_labels import LabelTest, walk
from stopadvisor.stats.bounds import max_losses
from tests.populations import FREE_FORM, renamed, without_gold

N = 600
SETTINGS = Settings(alpha=0.05, families=("confidence",), loss="differs")


@pytest.fixture(scope="module")
def choice() -> Choice:
    fit = FREE_FORM.draw(600, np.random.default_rng(1))
    return choose(without_gold(fit).as_fit(), N, SETTINGS)


def test_the_estimate_is_what_labelling_then_takes(choice: Choice) -> None:
    sequence = choice.advised
    assert sequence is not None
    most = max_losses(N, SETTINGS.alpha, SETTINGS.delta)
    savings = 100 * (1 - sequence.costs / choice.fit.full_cost.sum())
    asked, saved, shares = [], [], []
    for seed in range(10):
        table = renamed(FREE_FORM.draw(N, np.random.default_rng(100 + seed)), "c")
        view = sequence.scorer.view(table)
        curve = sequence.scorer.curve(view, sequence.thresholds)
        differs = curve.each(DIFFERS.of(view) > 0)
        lost = curve.each(LOST.of(view) > 0)
        test = LabelTest(differs, lost, most, savings)
        found = walk([test], np.zeros(N, dtype=np.bool_), np.arange(N), budget=None)
        asked.append(found.asked.size)
        saved.append(found.saving([test]))
        shares.append(lost[found.asked].any(axis=1).mean())
    nothing, some = label_needs(choice, shares=[float(np.mean(shares))])
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
    assert label_needs(choose(fit, N, replace(SETTINGS, loss="lost"))) == ()
    assert label_needs(replace(choice, advised=None)) == ()
    assert label_needs(replace(choice, n_calibration=10)) == ()
