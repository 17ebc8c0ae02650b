"""Studies `validation-selected`, `alpha-grid` and `split-sensitivity`, against plain rewrites."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from stopadvisor.studies.tables import StudyOptions
from tests.material import ARCHIVES
from tests.studies.material import NAMES, QUICK, Archive, row_of, rows_of, studied, study
from tests.studies.plain import SCALARS, certified, gain, load, scores_of, split, stops_of

pytestmark = pytest.mark.slow

PRECISE = StudyOptions(resamples=5000)


@pytest.mark.parametrize("name", NAMES)
def test_validation_selected_is_its_definition(name: str, archive: Archive) -> None:
    found = studied(study("validation-selected"), [archive(name)], QUICK)
    data = load(name)
    validation, test = split(len(data["correct"]))
    every = scores_of(data)
    assert [row["family"] for row in rows_of(found, "selected")] == list(every)
    for family, scores in every.items():
        low, high = scores[validation].min(), scores[validation].max()
        sweep = np.linspace(low, high, 40).round(4).tolist()
        gains = [gain(data, scores, threshold, validation) for threshold in sweep]
        best = sweep[int(np.argmax(gains))]
        row = row_of(found, "selected", family=family)
        assert row["threshold"] == pytest.approx(best)
        assert row["validation_gain"] == pytest.approx(max(gains), abs=1e-9)
        assert row["test_gain"] == pytest.approx(gain(data, scores, best, test), abs=1e-9)
        stops = stops_of(scores[test], best)
        total = (data["thinking"][test, stops] + 48 * (stops + 1)).mean()
        saving = 100 * (1 - total / (data["think_lens"][test].mean() + 48))
        assert row["total_saving_pct"] == pytest.approx(saving)
        assert row["test_accuracy"] == pytest.approx(data["correct"][test, stops].mean())
        assert row["test_gain_low"] < row["test_gain"] < row["test_gain_high"]
        assert row["questions"] == test.size


def test_intervals_of_selected_thresholds_resample_test_questions(archive: Archive) -> None:
    found = studied(study("validation-selected"), [archive("mixed")], StudyOptions(resamples=4000))
    data = load("mixed")
    _, test = split(len(data["correct"]))
    rng = np.random.default_rng(0)
    draws = [rng.choice(test, test.size) for _ in range(2000)]
    for family in ("learned", "run-stability", "confidence-leap"):
        row = row_of(found, "selected", family=family)
        scores = scores_of(data)[family]
        drawn = [gain(data, scores, row["threshold"], rows) for rows in draws]
        low, high = np.quantile(drawn, [0.025, 0.975])
        assert row["test_gain_low"] == pytest.approx(low, abs=0.004)
        assert row["test_gain_high"] == pytest.approx(high, abs=0.004)


@pytest.mark.parametrize("name", NAMES)
def test_alpha_grid_is_what_the_published_scripts_print(name: str, archive: Archive) -> None:
    expected = json.loads((ARCHIVES / "expected.json").read_text())[name]["alpha"]
    found = studied(study("alpha-grid"), [archive(name)], PRECISE)
    assert [row["alpha"] for row in rows_of(found, "paper")] == [0.05, 0.1, 0.15, 0.2]
    for row in rows_of(found, "paper"):
        at = expected[f"{row['alpha']:.2f}"]
        assert row["scalar"] == at["scalar"]["policy"]
        assert row["learned_risk"] == pytest.approx(at["learned"]["risk"])
        assert row["scalar_saving_pct"] == pytest.approx(at["scalar"]["save"])
        assert row["learned_saving_pct"] == pytest.approx(at["learned"]["save"])
        assert row["verdict"] == at["verdict"]
        shown = [row["difference_pp"], row["difference_low"], row["difference_high"]]
        if not (at["learned"]["feasible"] and at["scalar"]["feasible"]):
            assert shown == [None] * 3
            continue
        spread = at["delta_saving_pp"]
        assert shown == pytest.approx([spread["median"], *spread["ci95"]], abs=0.3)


@pytest.mark.parametrize("name", NAMES)
def test_split_sensitivity_is_the_comparison_under_five_seeds(name: str, archive: Archive) -> None:
    found = studied(study("split-sensitivity"), [archive(name)], QUICK)
    data = load(name)
    rows = rows_of(found, "seeds")
    assert [row["seed"] for row in rows] == [123, 456, 789, 1011, 2025]
    sides: dict[str, tuple[str, ...]] = {"learned": ("learned",), "scalar": SCALARS}
    expected: dict[str, list[Any]] = {side: [] for side in sides}
    for row in rows:
        calibration, test = split(len(data["correct"]), int(str(row["seed"])))
        for side, families in sides.items():
            point = certified(data, families, calibration, test)
            feasible, family, threshold, risk, saving = point
            assert row[f"{side}_feasible"] is feasible
            assert row[f"{side}_risk"] == pytest.approx(risk)
            assert row[f"{side}_saving_pct"] == pytest.approx(saving)
            stops = stops_of(scores_of(data)[family][test], threshold)
            expected[side].append((family, risk, data["correct"][test, stops].mean(), saving))
        assert row["scalar"] == expected["scalar"][-1][0]
    for side, rule in (("learned", "learned"), ("scalar", "best scalar")):
        families, *columns = zip(*expected[side], strict=True)
        risks, accuracies, savings = columns
        row = row_of(found, "summary", rule=rule)
        assert row["families"] == ", ".join(dict.fromkeys(families))
        assert row["mean_risk"] == pytest.approx(np.mean(risks))
        assert row["mean_accuracy"] == pytest.approx(np.mean(accuracies))
        assert row["mean_saving_pct"] == pytest.approx(np.mean(savings))
        assert row["sd_saving_pct"] == pytest.approx(np.std(savings, ddof=1))
    apart = [a[-1] - b[-1] for a, b in zip(expected["learned"], expected["scalar"], strict=True)]
    row = row_of(found, "summary", rule="learned")
    assert row["learned_ahead"] == np.mean([difference > 0 for difference in apart])
    assert row["mean_difference_pp"] == pytest.approx(np.mean(apart))
