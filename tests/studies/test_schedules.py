"""Study `schedules` against features and folds made anew for each schedule."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stopadvisor.ground.constants import PAPER_BUDGETS, PAPER_SCHEDULES
from stopadvisor.ground.errors import StudyError
from stopadvisor.runs.sources import open_source
from stopadvisor.studies.peak_gain import nearest_columns
from tests.material import ARCHIVES, BUDGETS, edit_records, make_run
from tests.studies.material import QUICK, Archive, Sums, row_of, studied, study
from tests.studies.plain import SWEEP, features, load, out_of_fold, stops_of

run = study("schedules")


@pytest.mark.parametrize(
    ("budgets", "schedule", "expected"),
    [
        pytest.param(PAPER_BUDGETS, (0, 256, 512, 1536), (0, 3, 5, 9), id="as probed"),
        pytest.param((0, 16, 32, 96), (0, 256, 512, 1536), (0, 1, 2, 3), id="scaled"),
        pytest.param(PAPER_BUDGETS, (0, 64, 192, 1536), (0, 2, 9), id="ties go down, once each"),
        pytest.param((8, 96), (0, 64, 1536), (0, 1), id="no probe at 0"),
    ],
)
def test_schedules_take_the_nearest_probed_budgets(
    budgets: tuple[int, ...], schedule: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert nearest_columns(np.array(budgets), schedule) == expected


@pytest.mark.parametrize("name", ["mixed", "early"])
@pytest.mark.parametrize("schedule", ["4-linear", "6-linear"])
def test_peak_gains_are_those_of_rules_fitted_on_the_schedule(
    name: str, schedule: str, archive: Archive
) -> None:
    found = studied(run, [archive(name)], QUICK)
    data = load(name)
    budgets = data["budgets"].tolist()
    columns = [budgets.index(b) for b in PAPER_SCHEDULES[schedule]]
    correct, thinking = data["correct"], data["thinking"]
    chances = out_of_fold(features(data, columns), correct[:, columns])
    rows = np.arange(len(correct))
    gains = []
    for threshold in SWEEP:
        stops = np.array(columns)[stops_of(chances, threshold)]
        tokens = thinking[rows, stops].mean()
        fixed = np.interp(tokens, thinking.mean(axis=0), correct.mean(axis=0))
        gains.append(correct[rows, stops].mean() - fixed)
    row = row_of(found, "gain", schedule=schedule)
    assert row["peak_gain"] == pytest.approx(max(gains), abs=1e-9)
    assert row["max_overhead"] == 48 * len(columns)
    whole = json.loads((ARCHIVES / "expected.json").read_text())[name]["regimes"]["peak_gain"]
    assert row["retention_pct"] == pytest.approx(100 * max(gains) / whole)
    assert row_of(found, "gain", schedule="as probed")["peak_gain"] == pytest.approx(whole)


def test_what_was_not_probed_is_said(sums: Sums) -> None:
    found = studied(run, [sums(300)], QUICK)
    row = row_of(found, "schedules", schedule="4-linear")
    assert row["asked"] == "0 256 512 1536"
    assert row["probed"] == "0 16 32 96"
    assert any("nearest probed budgets, scaled to the last one (96)" in r for r in found.remarks)


def test_a_schedule_without_anything_to_learn_has_no_gain(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", 200)
    taken = nearest_columns(np.array(BUDGETS), PAPER_SCHEDULES["4-linear"])

    def spoil(row: dict, part: str) -> None:  # type: ignore[type-arg]
        for column in taken:
            row["checkpoints"][column]["correct"] = False

    edit_records(path, spoil)
    found = run([open_source(path)], QUICK)
    row = row_of(found, "gain", schedule="4-linear")
    assert (row["peak_gain"], row["retention_pct"]) == (None, None)
    assert row_of(found, "gain", schedule="as probed")["peak_gain"] is not None


def test_a_run_without_questions_to_show_is_named(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", 60, fractions=(0.0, 0.8, 0.2))
    with pytest.raises(StudyError, match="run: the paper protocol needs at least 10 questions"):
        run([open_source(path)], QUICK)
