"""Studies of the comparison at equal risk, against published figures and a plain rewrite.

Where no rule is feasible both sides never stop, and their figures are the same: these archives hold
enough questions.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

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
