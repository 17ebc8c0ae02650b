"""Peak gain and its bootstrap, against loops and against what the published scripts print."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stopadvisor.paper.peaks import learned_peak, resample_gains
from stopadvisor.paper.protocol import PaperSetting
from stopadvisor.runs.archives import read_archive
from stopadvisor.stats.intervals import resample_counts
from tests.material import ARCHIVES


@pytest.mark.parametrize("name", ["mixed", "early"])
def test_peaks_are_those_of_the_published_scripts(name: str) -> None:
    expected = json.loads((ARCHIVES / "expected.json").read_text())[name]["regimes"]
    setting = PaperSetting.build(read_archive(ARCHIVES / f"{name}.npz"))
    found = learned_peak(setting)
    assert (found.gain, found.threshold) == pytest.approx((expected["peak_gain"], expected["tau"]))


def test_each_resample_has_its_own_frontier() -> None:
    rng = np.random.default_rng(1)
    n, m = 120, 5
    trace = rng.integers(1, 60, n)
    thinking = np.minimum(trace[:, None], 12 * np.arange(m)).astype(float)
    correct = rng.random((n, m)) < np.linspace(0.2, 0.8, m)
    stops = {"a": rng.integers(0, m, n), "last": np.full(n, m - 1), "first": np.zeros(n, int)}
    found = resample_gains(stops, thinking, correct, n_resamples=200, rng=np.random.default_rng(7))
    counts = resample_counts(n, 200, rng=np.random.default_rng(7))
    rows = np.arange(n)
    for b, weights in enumerate(counts):
        fixed = weights @ thinking / n, weights @ correct / n
        for name, at in stops.items():
            cost = weights @ thinking[rows, at] / n
            gain = weights @ correct[rows, at] / n - np.interp(cost, *fixed)
            assert found[name][b] == pytest.approx(gain, abs=1e-5)
    assert np.abs(found["last"]).max() < 1e-5
    assert np.abs(found["first"]).max() < 1e-5


def test_many_questions_are_resampled_in_blocks_and_spread_as_much() -> None:
    rng = np.random.default_rng(2)
    n = 6001  # three blocks' worth, one question over
    correct = np.column_stack([rng.random(n) < 0.3, rng.random(n) < 0.7])
    thinking = np.column_stack([np.zeros(n), rng.integers(50, 150, n).astype(float)])
    stops = {"coin": rng.integers(0, 2, n)}
    found = resample_gains(
        stops, thinking, correct, n_resamples=2000, rng=np.random.default_rng(3)
    )["coin"]
    right = correct[np.arange(n), stops["coin"]]
    # A rule that tosses a coin gains nothing over fixed budgets.
    assert abs(found.mean()) < 4 * found.std()
    assert found.std() == pytest.approx(right.std() / np.sqrt(n), rel=0.5)


def test_one_checkpoint_gains_nothing() -> None:
    correct = np.array([[True], [False], [True]])
    found = resample_gains(
        {"only": np.zeros(3, int)},
        np.array([[0.0], [4.0], [9.0]]),
        correct,
        n_resamples=100,
        rng=np.random.default_rng(0),
    )
    assert np.abs(found["only"]).max() < 1e-6
