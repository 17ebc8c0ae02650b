"""Study `frontier` against the definitions written out over the archives' own arrays."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stopadvisor.sources import open_source
from stopadvisor.studies.frontier import run
from stopadvisor.studies.study import StudyOptions
from tests.material import make_run
from tests.studies.material import (
    ARCHIVES,
    NAMES,
    QUICK,
    archive,
    needs_archives,
    row_of,
    rows_of,
)


def first(scores: np.ndarray, threshold: float) -> np.ndarray:
    hit = scores >= threshold
    return np.asarray(np.where(hit.any(axis=1), hit.argmax(axis=1), scores.shape[1] - 1))


@needs_archives
@pytest.mark.parametrize("name", NAMES)
def test_peaks_are_those_of_the_definitions(name: str, tmp_path: Path) -> None:
    found = run([archive(name, tmp_path)], QUICK)
    data = np.load(ARCHIVES / f"{name}.npz")
    correct, trace = data["correct"], data["think_lens"]
    thinking = np.minimum(trace[:, None], data["budgets"])
    cost, accuracy = thinking.mean(axis=0), correct.mean(axis=0)
    at = np.arange(len(correct))

    def fixed(tokens: float, how: str) -> float:
        if how == "linear":
            return float(np.interp(tokens, cost, accuracy))
        if how == "nearest":
            return float(accuracy[np.abs(cost - tokens).argmin()])
        below, above = accuracy[cost <= tokens + 1e-9], accuracy[cost >= tokens - 1e-9]
        return float(below[-1] if how == "floor" else above[0])

    def best(scores: np.ndarray, sweep: np.ndarray, how: str) -> float:
        gains = []
        for threshold in sweep:
            stops = first(scores, threshold)
            gains.append(correct[at, stops].mean() - fixed(float(thinking[at, stops].mean()), how))
        return float(max(gains))

    for family, scores in (("confidence", np.exp(data["conf_lp"])), ("entropy", -data["conf_ent"])):
        sweep = np.linspace(scores.min(), scores.max(), 30).round(4)
        row = row_of(found, "interpolation", family=family)
        for how in ("linear", "nearest", "floor", "ceiling"):
            assert row[how] == pytest.approx(best(scores, sweep, how), abs=1e-9)
        assert row_of(found, "peaks", family=family)["peak_gain"] == row["linear"]


@needs_archives
@pytest.mark.parametrize("name", NAMES)
def test_the_learned_peak_is_what_the_published_scripts_print(name: str, tmp_path: Path) -> None:
    expected = json.loads((ARCHIVES / "expected.json").read_text())[name]["regimes"]
    row = row_of(run([archive(name, tmp_path)], QUICK), "peaks", family="learned")
    assert row["peak_gain"] == pytest.approx(expected["peak_gain"], abs=1e-12)
    assert float(row["threshold"]) == expected["tau"]
    assert row["gain_low"] < row["peak_gain"] < row["gain_high"]


@needs_archives
def test_intervals_are_those_of_a_loop_over_resamples(tmp_path: Path) -> None:
    found = run([archive("mixed", tmp_path)], StudyOptions(resamples=4000, seed=5))
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


def test_before_a_look_only_fit_questions_are_read(tmp_path: Path) -> None:
    source = open_source(make_run(tmp_path / "run", 300))
    found = run([source], QUICK)
    assert row_of(found, "runs")["questions"] == source.counts()["fit"]
    assert any("fit questions alone" in remark for remark in found.remarks)
    assert {row["family"] for row in rows_of(found, "served")} >= {"learned", "entropy"}


def test_curves_end_at_full_thinking(tmp_path: Path) -> None:
    source = open_source(make_run(tmp_path / "run", 300))
    curves = rows_of(run([source], QUICK), "curves")
    fixed = [row for row in curves if row["family"] == "fixed budget"]
    assert [row["at"] for row in fixed] == source.table.budgets.tolist()
    assert all(row["gain"] == 0 for row in fixed)
