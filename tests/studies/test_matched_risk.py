"""Studies `validation-selected`, `alpha-grid` and `split-sensitivity`, against plain rewrites."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.choice import choose
from stopadvisor.sources import open_source
from stopadvisor.studies import alpha_grid, split_sensitivity, validation_selected
from stopadvisor.studies.sides import study_settings
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


def stops_of(scores: np.ndarray, threshold: float) -> np.ndarray:
    hit = scores >= threshold
    hit[:, -1] = True
    return np.asarray(hit.argmax(axis=1))


@needs_archives
@pytest.mark.parametrize("name", NAMES)
def test_validation_selected_is_its_definition(name: str, tmp_path: Path) -> None:
    found = validation_selected.run([archive(name, tmp_path)], QUICK)
    data = np.load(ARCHIVES / f"{name}.npz")
    correct, trace = data["correct"], data["think_lens"]
    n = len(correct)
    thinking = np.minimum(trace[:, None], data["budgets"])
    order = np.random.default_rng(123).permutation(n)
    validation, test = order[: int(0.4 * n)], order[int(0.4 * n) :]
    for family, scores in (("confidence", np.exp(data["conf_lp"])), ("entropy", -data["conf_ent"])):

        def gain(rows: np.ndarray, threshold: float, scores: np.ndarray = scores) -> float:
            stops = stops_of(scores[rows], threshold)
            tokens = thinking[rows, stops].mean()
            fixed = np.interp(tokens, thinking[rows].mean(axis=0), correct[rows].mean(axis=0))
            return float(correct[rows, stops].mean() - fixed)

        low, high = scores[validation].min(), scores[validation].max()
        sweep = np.linspace(low, high, 40).round(4).tolist()
        best = max(sweep, key=lambda t: gain(validation, t))
        row = row_of(found, "selected", family=family)
        assert row["threshold"] == pytest.approx(best)
        assert row["validation_gain"] == pytest.approx(gain(validation, best))
        assert row["test_gain"] == pytest.approx(gain(test, best))
        stops = stops_of(scores[test], best)
        total = (thinking[test, stops] + 48 * (stops + 1)).mean()
        saving = 100 * (1 - total / (trace[test].mean() + 48))
        assert row["total_saving_pct"] == pytest.approx(saving)
        assert row["test_accuracy"] == pytest.approx(correct[test, stops].mean())
        assert row["test_gain_low"] < row["test_gain"] < row["test_gain_high"]
        assert row["questions"] == test.size


@needs_archives
@pytest.mark.parametrize("name", NAMES)
def test_alpha_grid_is_what_the_published_scripts_print(name: str, tmp_path: Path) -> None:
    expected = json.loads((ARCHIVES / "expected.json").read_text())[name]["alpha"]
    found = alpha_grid.run([archive(name, tmp_path)], StudyOptions(resamples=5000))
    assert [row["alpha"] for row in rows_of(found, "paper")] == [0.05, 0.1, 0.15, 0.2]
    for row in rows_of(found, "paper"):
        at = expected[f"{row['alpha']:.2f}"]
        assert row["scalar"] == at["scalar"]["policy"]
        assert row["learned_risk"] == pytest.approx(at["learned"]["risk"])
        assert row["scalar_saving_pct"] == pytest.approx(at["scalar"]["save"])
        assert row["learned_saving_pct"] == pytest.approx(at["learned"]["save"])
        assert row["difference_pp"] == pytest.approx(at["delta_saving_pp"]["median"], abs=0.3)
        assert row["difference_low"] == pytest.approx(at["delta_saving_pp"]["ci95"][0], abs=0.3)
        assert row["verdict"] == at["verdict"]


def best_scalar(data: Any, seed: int) -> tuple[str, float, float]:
    """Family, test risk and saving of the cheapest feasible scalar, in plain numpy."""
    correct, trace = data["correct"], data["think_lens"]
    n, m = correct.shape
    total = np.minimum(trace[:, None], data["budgets"]) + 48 * np.arange(1, m + 1)
    confidence = np.exp(data["conf_lp"])
    leap = np.zeros_like(confidence)
    leap[:, 1:] = np.maximum(0, np.diff(confidence, axis=1)) * confidence[:, 1:]
    runs = np.ones((n, m))
    for j in range(1, m):
        runs[:, j] = np.where(data["ans"][:, j] == data["ans"][:, j - 1], runs[:, j - 1] + 1, 1)
    scores = {
        "confidence": confidence,
        "entropy": -data["conf_ent"],
        "run-stability": runs,
        "confidence-leap": leap,
    }
    order = np.random.default_rng(seed).permutation(n)
    calibration, test = order[: int(0.4 * n)], order[int(0.4 * n) :]
    q = [0, 0.005, *np.arange(1, 100) / 100, 0.995, 1]
    grids = {}
    for family, s in scores.items():
        values = s[calibration]
        unique = np.unique(values)
        extra = unique if unique.size <= 500 else np.array([])
        grids[family] = np.unique([*np.quantile(values, q), *extra, values.max() + 1])
    slack = math.sqrt(math.log(sum(map(len, grids.values())) / 0.05) / (2 * calibration.size))
    best = None
    for family, s in scores.items():
        for threshold in grids[family].tolist():
            stops = stops_of(s[calibration], threshold)
            lost = correct[calibration, -1] & (1 - correct[calibration, stops])
            cost = total[calibration, stops].mean()
            if lost.mean() + slack <= 0.15 and (best is None or cost < best[0]):
                best = (cost, family, threshold)
    assert best is not None
    _, family, threshold = best
    stops = stops_of(scores[family][test], threshold)
    risk = float((correct[test, -1] & (1 - correct[test, stops])).mean())
    saving = float(100 * (1 - total[test, stops].mean() / (trace[test].mean() + 48)))
    return family, risk, saving


@needs_archives
def test_split_sensitivity_is_the_comparison_under_five_seeds(tmp_path: Path) -> None:
    found = split_sensitivity.run([archive("mixed", tmp_path)], QUICK)
    data = np.load(ARCHIVES / "mixed.npz")
    rows = rows_of(found, "seeds")
    assert [row["seed"] for row in rows] == [123, 456, 789, 1011, 2025]
    for row in rows:
        family, risk, saving = best_scalar(data, int(str(row["seed"])))
        assert row["scalar"] == family
        assert row["scalar_risk"] == pytest.approx(risk)
        assert row["scalar_saving_pct"] == pytest.approx(saving)
    learned = [float(str(row["learned_saving_pct"])) for row in rows]
    scalar = [float(str(row["scalar_saving_pct"])) for row in rows]
    summary = row_of(found, "summary", rule="learned")
    assert summary["mean_saving_pct"] == pytest.approx(np.mean(learned))
    assert summary["sd_saving_pct"] == pytest.approx(np.std(learned, ddof=1))
    assert summary["learned_ahead"] == np.mean(
        [a > b for a, b in zip(learned, scalar, strict=True)]
    )
    assert summary["mean_difference_pp"] == pytest.approx(np.mean(learned) - np.mean(scalar))
    certified = rows_of(found, "certified")
    assert len(certified) == 5
    for row in certified:
        if row["family"] is not None:
            assert int(str(row["losses"])) <= 0.15 * int(str(row["calibration"]))


@needs_archives
def test_the_deploy_side_of_alpha_grid_is_the_choice_on_fit(tmp_path: Path) -> None:
    source = archive("mixed", tmp_path)
    found = row_of(alpha_grid.run([source], QUICK), "deploy", alpha=0.15)
    counts = source.counts()
    choice = choose(source.part("fit"), counts["calibration"], study_settings(QUICK))
    assert choice.learned is not None
    assert found["learned_saving_pct"] == choice.learned.fit_total_saving_pct
    assert (found["verdict"], found["chance"]) == (choice.verdict, choice.chance)


def test_closed_calibration_stays_closed(tmp_path: Path) -> None:
    source = open_source(make_run(tmp_path / "run", 300))
    options = StudyOptions(resamples=200)
    selected = validation_selected.run([source], options)
    n_fit = source.counts()["fit"]
    assert rows_of(selected, "selected")[0]["questions"] == n_fit - int(0.4 * n_fit)
    assert rows_of(selected, "deployed") == []
    assert any("no test questions to show" in remark for remark in selected.remarks)
    split = split_sensitivity.run([source], options)
    assert rows_of(split, "certified") == []
    assert any("calibration is closed" in remark for remark in split.remarks)
