"""Studies of the comparison at equal risk, against published figures and a plain rewrite.

Where no rule is feasible both sides never stop, and their figures are the same: these archives hold
enough questions.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from stopadvisor.studies import matched_risk
from stopadvisor.studies.tables import StudyOptions
from tests.material import ARCHIVES
from tests.studies.material import NAMES, QUICK, Archive, row_of, rows_of, studied, study
from tests.studies.plain import SCALARS, certified, load, scores_of, split, stops_of

pytestmark = pytest.mark.slow

SIDES: dict[str, tuple[str, ...]] = {"learned": ("learned",), "scalar": SCALARS}


@pytest.mark.parametrize("name", NAMES)
def test_alpha_grid_is_what_the_published_scripts_print(name: str, archive: Archive) -> None:
    expected = json.loads((ARCHIVES / "expected.json").read_text())[name]["alpha"]
    found = studied(study("alpha-grid"), [archive(name)], StudyOptions())
    assert [row["alpha"] for row in rows_of(found, "paper")] == [0.05, 0.1, 0.15, 0.2]
    for row in rows_of(found, "paper"):
        at = expected[f"{row['alpha']:.2f}"]
        assert row["scalar"] == at["scalar"]["policy"]
        for side in SIDES:
            assert row[f"{side}_risk"] == pytest.approx(at[side]["risk"])
            assert row[f"{side}_saving_pct"] == pytest.approx(at[side]["save"])
        assert row["verdict"] == at["verdict"]
        shown = [row["difference_pp"], row["difference_low"], row["difference_high"]]
        if not (at["learned"]["feasible"] and at["scalar"]["feasible"]):
            assert shown == [None] * 3
            continue
        spread = at["delta_saving_pp"]
        assert shown == pytest.approx([spread["median"], *spread["ci95"]], abs=0.3)


def test_split_sensitivity_is_the_comparison_under_five_seeds(archive: Archive) -> None:
    found = studied(study("split-sensitivity"), [archive("mixed")], QUICK)
    data = load("mixed")
    rows = rows_of(found, "seeds")
    assert [row["seed"] for row in rows] == [123, 456, 789, 1011, 2025]
    expected: dict[str, list[Any]] = {side: [] for side in SIDES}
    for row in rows:
        calibration, test = split(len(data["correct"]), int(str(row["seed"])))
        for side, families in SIDES.items():
            feasible, family, threshold, risk, saving = certified(data, families, calibration, test)
            assert row[f"{side}_feasible"] is feasible
            assert row[f"{side}_risk"] == pytest.approx(risk)
            assert row[f"{side}_saving_pct"] == pytest.approx(saving)
            stops = stops_of(scores_of(data)[family][test], threshold)
            expected[side].append((family, risk, data["correct"][test, stops].mean(), saving))
        assert row["scalar"] == expected["scalar"][-1][0]
    for side, rule in (("learned", "learned"), ("scalar", "best scalar")):
        families, risks, accuracies, savings = zip(*expected[side], strict=True)
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


def test_thresholds_are_chosen_for_the_cap_of_a_probe(archive: Archive) -> None:
    found = studied(study("probe-cap"), [archive("mixed")], QUICK)
    data = load("mixed")
    parts = split(len(data["correct"]))
    for cap in (16, 96):
        row, savings = row_of(found, "charged", cap=cap), []
        for side, families in SIDES.items():
            feasible, family, _, _, saving = certified(data, families, *parts, cap=cap)
            assert row[f"{side}_feasible"] is feasible
            assert row[f"{side}_saving_pct"] == pytest.approx(saving)
            savings.append(saving)
        assert row["scalar_family"] == family
        assert row["delta_saving_low"] < savings[0] - savings[1] < row["delta_saving_high"]


def test_calibration_size_draws_from_the_calibration_questions(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matched_risk, "_SIZES", (80, 200))
    monkeypatch.setattr(matched_risk, "_DRAWS", 3)
    found = studied(study("calibration-size"), [archive("mixed")], QUICK)
    data = load("mixed")
    calibration, test = split(len(data["correct"]))
    rng = np.random.default_rng(QUICK.seed)
    for size in (80, 200):
        sets = [rng.choice(calibration, size=size, replace=False) for _ in range(3)]
    published = json.loads((ARCHIVES / "expected.json").read_text())["mixed"]["alpha"]["0.15"]
    for side, families in SIDES.items():
        points = [certified(data, families, rows, test) for rows in sets]
        row, savings = row_of(found, "drawn", questions=200, side=side), [p[4] for p in points]
        assert row["certified"] == np.mean([p[0] for p in points])
        assert row["saving_pct"] == pytest.approx(np.mean(savings))
        assert row["saving_min_pct"] == pytest.approx(min(savings))
        assert row["saving_max_pct"] == pytest.approx(max(savings))
        # All of them are the paper's comparison.
        row, at = row_of(found, "drawn", questions=calibration.size, side=side), published[side]
        assert (row["certified"], row["candidates"]) == (1.0, at["K"])
        assert row["saving_pct"] == pytest.approx(at["save"])
        assert row["test_risk"] == pytest.approx(at["risk"])
        slack = math.sqrt(math.log(at["K"] / 0.05) / (2 * calibration.size))
        assert row["slack"] == pytest.approx(slack)
    assert row_of(found, "drawn", questions=80, side="learned")["certified"] == 0.0
