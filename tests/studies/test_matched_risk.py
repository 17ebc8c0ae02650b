"""Studies of the comparison at equal risk, against plain rewrites."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stopadvisor.studies.tables import StudyOptions
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


# --- `probe-cap` ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_savings_are_those_of_thresholds_chosen_for_the_cap(name: str, archive: Archive) -> None:
    found = studied(study("probe-cap"), [archive(name)], QUICK)
    data = load(name)
    calibration, test = split(len(data["correct"]))
    for cap in (16, 96):
        row = row_of(found, "charged", cap=cap)
        feasible, _, _, _, saving = certified(data, ("learned",), calibration, test, cap=cap)
        assert (row["learned_feasible"], row["learned_saving_pct"]) == (
            feasible,
            pytest.approx(saving),
        )
        feasible, family, _, _, other = certified(data, SCALARS, calibration, test, cap=cap)
        assert (row["scalar_feasible"], row["scalar_family"]) == (feasible, family)
        assert row["scalar_saving_pct"] == pytest.approx(other)
        assert row["delta_saving_low"] < saving - other < row["delta_saving_high"]


# --- `calibration-size` ---------------------------------------------------------------------------


def test_smaller_sets_are_drawn_from_the_calibration_part(archive: Archive) -> None:
    found = studied(study("calibration-size"), [archive("mixed")], QUICK)
    data = load("mixed")
    calibration, test = split(len(data["correct"]))
    rng = np.random.default_rng(QUICK.seed)
    for size in (25, 50, 80, 100, 150, 200):
        sets = [rng.choice(calibration, size=size, replace=False) for _ in range(8)]
    for side, families in (("learned", ("learned",)), ("scalar", SCALARS)):
        points = [certified(data, families, rows, test) for rows in sets]
        row = row_of(found, "drawn", questions=200, side=side)
        assert row["certified"] == np.mean([p[0] for p in points])
        savings = [p[4] for p in points]
        assert row["saving_pct"] == pytest.approx(np.mean(savings))
        assert (row["saving_min_pct"], row["saving_max_pct"]) == pytest.approx(
            (min(savings), max(savings))
        )
    assert row_of(found, "drawn", questions=80, side="learned")["certified"] == 0.0
