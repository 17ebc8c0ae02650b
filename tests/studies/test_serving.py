"""Study `serving` against the published figures, and against costs summed request by request."""

from __future__ import annotations

import json

import pytest

from stopadvisor.studies.tables import StudyOptions
from tests.material import ARCHIVES
from tests.studies.material import NAMES, QUICK, Archive, row_of, studied, study
from tests.studies.plain import load, stops_of

run = study("serving")

pytestmark = pytest.mark.slow

OPTIONS = StudyOptions(resamples=400, alpha=0.2)


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_regimes_are_what_its_scripts_print(name: str, archive: Archive) -> None:
    found = studied(run, [archive(name)], QUICK)
    expected = json.loads((ARCHIVES / "expected.json").read_text())[name]["regimes"]
    for regime in ("kv-fork", "prefix-cache", "black-box"):
        row = row_of(found, "paper", regime=regime)
        assert row["saving_pct"] == pytest.approx(expected[regime.replace("-", "_")])
        assert row["threshold"] == expected["tau"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("regime", ["prefix-cache", "black-box"])
def test_at_the_break_even_weight_nothing_is_saved(
    name: str, regime: str, archive: Archive
) -> None:
    row = row_of(studied(run, [archive(name)], QUICK), "paper", regime=regime)
    data = load(name)
    stops = stops_of(data["p_stop"], row["threshold"])
    budgets, weight = data["budgets"], row["break_even_weight"]
    cost, full = 0.0, 0.0
    for i, stop in enumerate(stops.tolist()):
        again = (
            budgets[stop] * (stop + 1) if regime == "prefix-cache" else budgets[: stop + 1].sum()
        )
        cost += data["thinking"][i, stop] + 48 * (stop + 1) + weight * again
        full += data["think_lens"][i] + 48
    assert cost == pytest.approx(full)
    assert (row["saving_pct"] > 0) == (row["reread_weight"] < weight)
