"""Peak gain against the definitions in a loop, and against what the published scripts print."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stopadvisor.paper.peaks import fixed_budgets, learned_peak, peak, peak_thresholds
from stopadvisor.paper.protocol import PaperSetting, first_stops
from stopadvisor.runs.archives import read_archive
from tests.material import ARCHIVES
from tests.populations import POPULATIONS


def test_a_peak_is_the_highest_point_above_fixed_budgets() -> None:
    table = POPULATIONS[3].draw(240, np.random.default_rng(5)).with_reference("last-checkpoint")
    setting = PaperSetting.build(table)
    for family, scores in setting.scores.items():
        thresholds = peak_thresholds(family, scores)
        thinking, correct = setting.costs.thinking, setting.correct
        found = peak(scores, thinking, correct, thresholds, fixed_budgets(setting))
        best = None
        for threshold in thresholds.tolist():
            stops = first_stops(scores, threshold)
            rows = np.arange(len(stops))
            cost, accuracy = thinking[rows, stops].mean(), correct[rows, stops].mean()
            baseline = np.interp(cost, thinking.mean(axis=0), correct.mean(axis=0))
            if best is None or accuracy - baseline > best[0] + 1e-12:
                best = (accuracy - baseline, threshold, accuracy, cost)
        assert best is not None
        assert (found.gain, found.threshold, found.accuracy, found.cost) == pytest.approx(best)
        assert found.stops.tolist() == first_stops(scores, found.threshold).tolist()


@pytest.mark.parametrize("name", ["mixed", "early"])
def test_peaks_are_those_of_the_published_scripts(name: str) -> None:
    expected = json.loads((ARCHIVES / "expected.json").read_text())[name]["regimes"]
    setting = PaperSetting.build(read_archive(ARCHIVES / f"{name}.npz"))
    found = learned_peak(setting)
    assert (found.gain, found.threshold) == pytest.approx((expected["peak_gain"], expected["tau"]))
