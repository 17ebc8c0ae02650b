"""Study `probe-cap` against the matched-risk comparison rewritten for each cap."""

from __future__ import annotations

import pytest

from tests.studies.material import NAMES, QUICK, Archive, row_of, studied, study
from tests.studies.plain import SCALARS, certified, load, split

run = study("probe-cap")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", NAMES)
def test_savings_are_those_of_thresholds_chosen_for_the_cap(name: str, archive: Archive) -> None:
    found = studied(run, [archive(name)], QUICK)
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
