"""Study `serving` against the published figures, and against costs summed request by request."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stopadvisor.studies.protocols import deploy_protocol, study_settings
from stopadvisor.studies.serving import run
from stopadvisor.studies.study import StudyOptions
from tests.material import ARCHIVES
from tests.studies.material import NAMES, QUICK, Archive, Sums, row_of, rows_of, studied
from tests.studies.plain import load, stops_of

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


def test_prices_weigh_the_tokens_of_one_rule(sums: Sums) -> None:
    source = sums(500)
    found = studied(run, [source], OPTIONS)
    deploy = deploy_protocol(source, "run", study_settings(OPTIONS))
    chosen = deploy.cheapest(deploy.all_sequences())
    assert chosen is not None
    sequence, limit = chosen
    table, n_probes = sequence.view, sequence.view.n_checkpoints
    stops = sequence.curve.stops(limit.index).tolist()
    # Under kv-fork: prompt once, thinking, and suffix and answer of each probe until the stop.
    decoded = prefilled = full_decoded = 0.0
    assert table.natural_tokens is not None
    for i, stop in enumerate(stops):
        probed = [c for c in range(n_probes) if c <= stop and table.live[i, c]]
        decoded += sum(table.probe_tokens[i, c] for c in probed)
        prefilled += table.prompt_tokens[i] + table.suffix_tokens * len(probed)
        whole = table.trace_tokens[i] + table.natural_tokens[i]
        decoded += whole if stop == n_probes else table.positions[i, stop]
        full_decoded += whole
    for row in rows_of(found, "prices"):
        price = float(str(row["prefilled"]))
        full = full_decoded + price * table.prompt_tokens.sum()
        saving = 100 * (1 - (decoded + price * prefilled) / full)
        assert row["kv_fork_pct"] == pytest.approx(saving)
    regimes = {str(row["regime"]): row for row in rows_of(found, "regimes")}
    assert set(regimes) == {"kv-fork", "prefix-cache", "black-box", "overlap"}
    papers = row_of(found, "prices", swept="cached", cached=0.1)
    for name, row in regimes.items():
        assert row["saving_pct"] == pytest.approx(papers[f"{name.replace('-', '_')}_pct"])
        # The regime's own rule is the cheapest of all, the one shown among them.
        own = row_of(found, "own", regime=name)
        assert own["saving_pct"] >= float(str(row["saving_pct"])) - 1e-9
    assert row_of(found, "own", regime="kv-fork")["saving_pct"] == pytest.approx(limit.saving_pct)
    spent = row_of(found, "tokens", regime="kv-fork")
    n = table.n_questions
    assert (spent["decoded"], spent["prefilled"]) == pytest.approx((decoded / n, prefilled / n))


def test_prices_are_no_higher_than_a_cache_makes_them(sums: Sums) -> None:
    found = studied(run, [sums(500)], OPTIONS)
    swept = [row for row in rows_of(found, "prices") if row["swept"] == "cached"]
    savings = np.array(
        [[float(str(r["prefix_cache_pct"])), float(str(r["black_box_pct"]))] for r in swept]
    )
    assert (np.diff(savings[:, 0]) <= 1e-9).all()  # dearer cache, less saved
    assert np.ptp(savings[:, 1]) == pytest.approx(0)  # a black box reads no cache
