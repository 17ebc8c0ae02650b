"""Study `map`: archives against the published figures, the paper's rows against its text."""

from __future__ import annotations

import json
import re

import pytest

from stopadvisor.ground.errors import StudyError
from stopadvisor.paper.map import PAPER_ROWS
from stopadvisor.probes.trajectories import TYPES
from stopadvisor.studies.tables import StudyOptions
from tests.material import ARCHIVES
from tests.studies.material import NAMES, Archive, row_of, rows_of, studied, study

run = study("map")

pytestmark = pytest.mark.slow

VERDICTS = {
    "LearnStop better": "learned better",
    "Scalar better": "scalar better",
    "Inconclusive": "inconclusive",
}


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_what_the_published_scripts_print(name: str, archive: Archive) -> None:
    found = studied(run, [archive(name)], StudyOptions())
    expected = json.loads((ARCHIVES / "expected.json").read_text())[name]
    row = row_of(found, "summary")
    at = expected["alpha"]["0.15"]
    assert row["learned_peak"] == pytest.approx(expected["regimes"]["peak_gain"])
    assert row["delta_peak"] == pytest.approx(row["learned_peak"] - row["scalar_peak"])
    assert row["delta_saving_pp"] == pytest.approx(at["delta_saving_pp"]["median"], abs=0.3)
    assert row["delta_saving_low"] == pytest.approx(at["delta_saving_pp"]["ci95"][0], abs=0.3)
    assert row["verdict"] == at["verdict"]
    profile = row_of(found, "profiles")
    counts = expected["profile"]
    for kind in TYPES:
        assert profile[kind] == pytest.approx(counts[kind] / sum(counts.values()))
    serving = row_of(found, "serving")
    assert serving["black_box_pct"] == pytest.approx(expected["regimes"]["black_box"])


def test_no_difference_is_shown_of_rules_that_are_not_feasible(archive: Archive) -> None:
    row = row_of(studied(run, [archive("mixed")], StudyOptions(alpha=0.05)), "summary")
    assert row["verdict"] == "inconclusive"
    shown = [row[f"delta_saving_{name}"] for name in ("pp", "low", "high")]
    assert shown == [None] * 3


def test_the_papers_settings_stand_beside_ones_own_when_asked(archive: Archive) -> None:
    sources = [archive("mixed")]
    alone = studied(run, sources, StudyOptions())
    assert len(rows_of(alone, "summary")) == 1
    both = studied(run, sources, StudyOptions(resamples=400, alpha=0.1, extra={"paper": "1"}))
    origins = [row["origin"] for row in rows_of(both, "summary")]
    assert origins == ["here", *["paper"] * 18]
    assert len(rows_of(both, "profiles")) == 19
    # The cut-offs of this tool give the paper's profiles the regimes that the paper reports.
    regimes = {row["setting"]: row["regime"] for row in rows_of(both, "profiles")}
    assert regimes["GSM8K Qwen3-32B"] == "learned"
    assert regimes["MMLU-Pro Qwen3-8B"] == "scalar"
    assert regimes["AIME Qwen3-8B"] == "full-budget"
    assert regimes["GPQA Qwen3-8B"] is None
    with pytest.raises(StudyError, match="option paper must be 0 or 1, got 'yes'"):
        run(sources, StudyOptions(extra={"paper": "yes"}))


def test_every_figure_of_the_paper_is_its_own() -> None:
    printed = json.loads((ARCHIVES / "tables.json").read_text(encoding="utf-8"))
    summary, frontier, profiles, serving = (
        {(task, model): cells for task, model, *cells in printed[name]}
        for name in ("summary", "frontier", "profiles", "serving")
    )
    assert [(row.task, row.model) for row in PAPER_ROWS] == list(summary)
    assert len(summary) == 18
    for row in PAPER_ROWS:
        setting = row.task, row.model
        *figures, interval, verdict = summary[setting]
        learned, scalar, delta, saving = map(float, figures)
        assert (row.learned_peak, row.scalar_peak, row.delta_peak) == (learned, scalar, delta)
        limits = re.findall(r"[+-][\d.]+", interval)
        assert (row.delta_saving_pp, row.ci95) == (saving, tuple(map(float, limits)))
        assert row.verdict == VERDICTS[verdict]
        accuracy, tokens = frontier[setting][:2]
        assert (row.full_accuracy, row.mean_think) == (float(accuracy), float(tokens))
        shares = profiles.get(setting)
        if shares is None:
            assert row.shares is None
        else:
            assert row.shares is not None
            expected = {k: float(s) / 100 for k, s in zip(TYPES, shares, strict=True)}
            assert row.shares == pytest.approx(expected)
        saved = serving.get(setting)
        if saved is None:
            assert row.saving_pct is None
        else:
            assert row.saving_pct is not None
            assert list(row.saving_pct.values()) == [float(s) for s in saved]
    assert len(profiles) == sum(row.shares is not None for row in PAPER_ROWS)
    assert len(serving) == sum(row.saving_pct is not None for row in PAPER_ROWS)
