"""Study `calibration-size` against calibration sets drawn and certified in plain numpy."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tests.material import ARCHIVES
from tests.studies.material import NAMES, QUICK, Archive, row_of, studied, study
from tests.studies.plain import SCALARS, certified, load, split

run = study("calibration-size")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", NAMES)
def test_the_whole_calibration_part_is_the_papers_comparison(name: str, archive: Archive) -> None:
    found = studied(run, [archive(name)], QUICK)
    expected = json.loads((ARCHIVES / "expected.json").read_text())[name]["alpha"]["0.15"]
    n = int(0.4 * len(load(name)["correct"]))
    for side in ("learned", "scalar"):
        row = row_of(found, "drawn", questions=n, side=side)
        assert row["certified"] == 1.0
        assert row["saving_pct"] == pytest.approx(expected[side]["save"])
        assert row["test_risk"] == pytest.approx(expected[side]["risk"])
        assert row["candidates"] == expected[side]["K"]
        slack = math.sqrt(math.log(expected[side]["K"] / 0.05) / (2 * n))
        assert row["slack"] == pytest.approx(slack)


def test_smaller_sets_are_drawn_from_the_calibration_part(archive: Archive) -> None:
    found = studied(run, [archive("mixed")], QUICK)
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
