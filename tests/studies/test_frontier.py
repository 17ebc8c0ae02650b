"""Study `frontier` against the definitions written out over the archives' own arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stopadvisor.studies.tables import StudyOptions
from tests.material import ARCHIVES
from tests.studies.material import NAMES, QUICK, Archive, row_of, rows_of, studied, study
from tests.studies.plain import SCALARS, load, sweep_stops

run = study("frontier")


def first(scores: np.ndarray, threshold: float) -> np.ndarray:
    hit = scores >= threshold
    return np.asarray(np.where(hit.any(axis=1), hit.argmax(axis=1), scores.shape[1] - 1))


def fixed_budget(data: dict[str, Any], tokens: float, how: str) -> float:
    """Accuracy of fixed budgets at some mean thinking tokens."""
    cost, accuracy = data["thinking"].mean(axis=0), data["correct"].mean(axis=0)
    if how == "linear":
        return float(np.interp(tokens, cost, accuracy))
    if how == "nearest":
        return float(accuracy[np.abs(cost - tokens).argmin()])
    below, above = accuracy[cost <= tokens + 1e-9], accuracy[cost >= tokens - 1e-9]
    return float(below[-1] if how == "floor" else above[0])


@pytest.mark.parametrize("name", NAMES)
def test_peaks_of_every_family_are_those_of_the_definitions(name: str, archive: Archive) -> None:
    found = studied(run, [archive(name)], QUICK)
    data = load(name)
    at = np.arange(len(data["correct"]))
    swept = sweep_stops(data)
    families = ["learned", *SCALARS]
    for table in ("peaks", "interpolation"):
        assert [row["family"] for row in rows_of(found, table)] == families
    gained: dict[str, dict[tuple[float, ...], float]] = {}
    for family in families:
        points = {
            numbers: (float(data["thinking"][at, stops].mean()), data["correct"][at, stops].mean())
            for numbers, stops in swept[family].items()
        }
        for how in ("linear", "nearest", "floor", "ceiling"):
            above = {
                n: right - fixed_budget(data, cost, how) for n, (cost, right) in points.items()
            }
            row = row_of(found, "interpolation", family=family)
            assert row[how] == pytest.approx(max(above.values()), abs=1e-9)
            if how == "linear":
                gained[family] = above
        best = max(gained[family], key=lambda n: gained[family][n])
        row = row_of(found, "peaks", family=family)
        assert row["threshold"] == ", ".join(f"{number:g}" for number in best)
        assert row["peak_gain"] == pytest.approx(gained[family][best], abs=1e-9)
        assert (row["think_tokens"], row["accuracy"]) == pytest.approx(points[best])
        assert row["gain_low"] < row["peak_gain"] < row["gain_high"]
    peaks = {family: max(above.values()) for family, above in gained.items()}
    best_scalar = max(SCALARS, key=lambda family: peaks[family])
    row = row_of(found, "runs")
    assert (row["best_scalar"], row["questions"]) == (best_scalar, at.size)
    assert row["learned_peak"] == pytest.approx(peaks["learned"])
    assert row["difference"] == pytest.approx(peaks["learned"] - peaks[best_scalar])
    assert row["full_accuracy"] == data["correct"][:, -1].mean()
    assert row["full_tokens"] == data["think_lens"].mean()


def test_curves_pass_through_every_threshold(archive: Archive) -> None:
    found = studied(run, [archive("mixed")], QUICK)
    data = load("mixed")
    at = np.arange(len(data["correct"]))
    swept = sweep_stops(data)
    for family in ("learned", "confidence", "entropy", "run-stability"):
        curve = [row for row in rows_of(found, "curves") if row["family"] == family]
        assert [row["at"] for row in curve] == pytest.approx([t for (t,) in swept[family]])
        for row, stops in zip(curve, swept[family].values(), strict=True):
            tokens, right = data["thinking"][at, stops].mean(), data["correct"][at, stops].mean()
            assert (row["think_tokens"], row["accuracy"]) == pytest.approx((tokens, right))
            assert row["gain"] == pytest.approx(
                right - fixed_budget(data, tokens, "linear"), abs=1e-9
            )


def test_intervals_are_those_of_a_loop_over_resamples(archive: Archive) -> None:
    found = studied(run, [archive("mixed")], StudyOptions(resamples=4000, seed=5))
    data = np.load(ARCHIVES / "mixed.npz")
    correct, trace = data["correct"], data["think_lens"]
    thinking = np.minimum(trace[:, None], data["budgets"])
    confidence = np.exp(data["conf_lp"])
    row = row_of(found, "peaks", family="confidence")
    stops = first(confidence, float(row["threshold"]))
    rng = np.random.default_rng(0)
    gains = []
    for _ in range(2000):
        s = rng.integers(0, len(stops), len(stops))
        tokens = thinking[s, stops[s]].mean()
        fixed = np.interp(tokens, thinking[s].mean(axis=0), correct[s].mean(axis=0))
        gains.append(correct[s, stops[s]].mean() - fixed)
    low, high = np.quantile(gains, [0.025, 0.975])
    assert row["gain_low"] == pytest.approx(low, abs=0.003)
    assert row["gain_high"] == pytest.approx(high, abs=0.003)
