"""Study `probe-cap` against the matched-risk comparison rewritten for each cap."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stopadvisor.runs.sources import open_source
from stopadvisor.studies.probe_cap import run
from tests.material import edit_records, make_run
from tests.studies.material import NAMES, QUICK, Archive, row_of, rows_of, studied
from tests.studies.plain import SCALARS, certified, load, split

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
    assert rows_of(found, "recorded") == []
    assert any("archives log no probe lengths" in remark for remark in found.remarks)


def test_recorded_tokens_are_cut_at_the_cap(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", 500)
    rng = np.random.default_rng(0)

    def lengthen(row: dict, part: str) -> None:  # type: ignore[type-arg]
        for checkpoint in row["checkpoints"]:
            checkpoint["probe_tokens"] = int(rng.integers(2, 30))

    edit_records(path, lengthen)
    source = open_source(path)
    fit = source.part("fit")
    tokens = fit.probe_tokens[~fit.ended]
    rows = rows_of(run([source], QUICK), "recorded")
    assert [row["cap"] for row in rows] == [4, 8, 16, 32]
    for row, cap in zip(rows, (4, 8, 16, 32), strict=True):
        assert row["cut_share"] == pytest.approx((tokens > cap).mean())
        assert row["mean_probe_tokens"] == pytest.approx(np.minimum(tokens, cap).mean())
    savings = [float(str(row["fit_saving_pct"])) for row in rows]
    assert savings == sorted(savings, reverse=True)
    assert savings[0] > savings[-1]
