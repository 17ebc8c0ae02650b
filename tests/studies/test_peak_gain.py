"""Studies of the gain over fixed budgets, against definitions in loops and published figures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.ground.constants import PAPER_BUDGETS, PAPER_SCHEDULES
from stopadvisor.ground.errors import StudyError
from stopadvisor.paper.map import PAPER_ROWS
from stopadvisor.probes.trajectories import TYPES
from stopadvisor.runs.sources import open_source
from stopadvisor.studies.peak_gain import nearest_columns
from stopadvisor.studies.tables import StudyOptions
from tests.material import ARCHIVES, BUDGETS, edit_records, make_run
from tests.studies.material import NAMES, QUICK, Archive, row_of, rows_of, studied, study
from tests.studies.plain import SCALARS, gain, load, scores_of, split, stops_of, sweep_stops

# --- `frontier` -----------------------------------------------------------------------------------


def fixed_budget(data: dict[str, Any], tokens: float, how: str) -> float:
    """Accuracy of fixed budgets at some mean thinking tokens."""
    cost, accuracy = data["thinking"].mean(axis=0), data["correct"].mean(axis=0)
    if how == "linear":
        return float(np.interp(tokens, cost, accuracy))
    if how == "nearest":
        return float(accuracy[np.abs(cost - tokens).argmin()])
    below, above = accuracy[cost <= tokens + 1e-9], accuracy[cost >= tokens - 1e-9]
    return float(below[-1] if how == "floor" else above[0])


@pytest.mark.parametrize("name", NAMES)
def test_peaks_of_every_family_are_those_of_the_definitions(name: str, archive: Archive) -> None:
    found = studied(study("frontier"), [archive(name)], QUICK)
    data = load(name)
    at = np.arange(len(data["correct"]))
    swept = sweep_stops(data)
    families = ["learned", *SCALARS]
    for table in ("peaks", "interpolation"):
        assert [row["family"] for row in rows_of(found, table)] == families
    gained: dict[str, dict[tuple[float, ...], float]] = {}
    for family in families:
        points = {
            numbers: (float(data["thinking"][at, stops].mean()), data["correct"][at, stops].mean())
            for numbers, stops in swept[family].items()
        }
        for how in ("linear", "nearest", "floor", "ceiling"):
            above = {
                n: right - fixed_budget(data, cost, how) for n, (cost, right) in points.items()
            }
            row = row_of(found, "interpolation", family=family)
            assert row[how] == pytest.approx(max(above.values()), abs=1e-9)
            if how == "linear":
                gained[family] = above
        best = max(gained[family], key=lambda n: gained[family][n])
        row = row_of(found, "peaks", family=family)
        assert row["threshold"] == ", ".join(f"{number:g}" for number in best)
        assert row["peak_gain"] == pytest.approx(gained[family][best], abs=1e-9)
        assert (row["think_tokens"], row["accuracy"]) == pytest.approx(points[best])
        assert row["gain_low"] < row["peak_gain"] < row["gain_high"]
    peaks = {family: max(above.values()) for family, above in gained.items()}
    best_scalar = max(SCALARS, key=lambda family: peaks[family])
    row = row_of(found, "runs")
    assert (row["best_scalar"], row["questions"]) == (best_scalar, at.size)
    assert row["learned_peak"] == pytest.approx(peaks["learned"])
    assert row["difference"] == pytest.approx(peaks["learned"] - peaks[best_scalar])
    assert row["full_accuracy"] == data["correct"][:, -1].mean()
    assert row["full_tokens"] == data["think_lens"].mean()


# --- `schedules` ----------------------------------------------------------------------------------


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


def test_a_schedule_without_anything_to_learn_has_no_gain(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", 200)
    taken = nearest_columns(np.array(BUDGETS), PAPER_SCHEDULES["4-linear"])

    def spoil(row: dict, part: str) -> None:  # type: ignore[type-arg]
        for column in taken:
            row["checkpoints"][column]["correct"] = False

    edit_records(path, spoil)
    found = study("schedules")([open_source(path)], QUICK)
    row = row_of(found, "gain", schedule="4-linear")
    assert (row["peak_gain"], row["retention_pct"]) == (None, None)
    assert row_of(found, "gain", schedule="as probed")["peak_gain"] is not None


def test_a_run_without_questions_to_show_is_named(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", 60, fractions=(0.0, 0.8, 0.2))
    with pytest.raises(StudyError, match="run: the paper protocol needs at least 10 questions"):
        study("schedules")([open_source(path)], QUICK)


# --- `serving` ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("regime", ["prefix-cache", "black-box"])
def test_at_the_break_even_weight_nothing_is_saved(regime: str, archive: Archive) -> None:
    row = row_of(studied(study("serving"), [archive("mixed")], QUICK), "paper", regime=regime)
    data = load("mixed")
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


# --- `map` ----------------------------------------------------------------------------------------


VERDICTS = {
    "LearnStop better": "learned better",
    "Scalar better": "scalar better",
    "Inconclusive": "inconclusive",
}


@pytest.mark.slow
def test_the_papers_settings_stand_beside_ones_own_when_asked(archive: Archive) -> None:
    sources = [archive("mixed")]
    alone = studied(study("map"), sources, StudyOptions())
    assert len(rows_of(alone, "summary")) == 1
    both = studied(
        study("map"), sources, StudyOptions(resamples=400, alpha=0.1, extra={"paper": "1"})
    )
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
        study("map")(sources, StudyOptions(extra={"paper": "yes"}))


@pytest.mark.slow
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


# --- `validation-selected` ------------------------------------------------------------------------


@pytest.mark.slow
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
