"""Study `temperature`: a row per run, seed and sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stopadvisor.ground.errors import StudyError
from stopadvisor.paper.peaks import learned_peak
from stopadvisor.paper.protocol import PaperSetting
from stopadvisor.probes.records import graded_table
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import open_source
from tests.studies.material import QUICK, row_of, rows_of, study
from tests.studies.related_runs import probe

run = study("temperature")

pytestmark = pytest.mark.slow


def test_runs_and_samples_are_rows(tmp_path: Path) -> None:
    paths = [
        probe(tmp_path / "greedy", greedy=True),
        probe(tmp_path / "warm", temperature=0.6, seed=7),
        probe(tmp_path / "two", samples=2, temperature=0.6),
        probe(tmp_path / "own"),
    ]
    found = run([open_source(path) for path in paths], QUICK)
    rows = rows_of(found, "temperature")
    named = [(r["run"], r["temperature"], r["seed"], r["sample"]) for r in rows]
    assert named == [
        ("greedy", "0 (greedy)", 0, 0),
        ("warm", "0.6", 7, 0),
        ("two", "0.6", 0, 0),
        ("two", "0.6", 0, 1),
        ("own", "the model's own", 0, 0),
    ]
    # Each row is about one sample of the fit questions, nothing else.
    source = open_source(paths[2])
    fit = set(source.part("fit").keys)
    records = [r for r in RunDirectory.load(paths[2]).records() if r.key in fit and r.sample == 1]
    row = row_of(found, "temperature", run="two", sample=1)
    assert row["questions"] == len(records)
    assert row["full_accuracy"] == pytest.approx(
        np.mean([r.checkpoints[-1].correct for r in records])
    )
    assert row["natural_accuracy"] == pytest.approx(np.mean([r.natural_correct for r in records]))
    assert row["mean_think_tokens"] == pytest.approx(np.mean([r.trace_tokens for r in records]))
    table = graded_table(records, "last-checkpoint")
    assert row["peak_gain"] == learned_peak(PaperSetting.build(table)).gain
    spread = row_of(found, "spread")
    gains = [float(str(r["peak_gain"])) for r in rows]
    assert (spread["peak_gain_min"], spread["peak_gain_max"]) == (min(gains), max(gains))
    assert spread["peak_gain_std"] == pytest.approx(np.std(gains, ddof=1))


def test_one_run_needs_several_samples(tmp_path: Path) -> None:
    single = open_source(probe(tmp_path / "one", 60))
    with pytest.raises(StudyError, match="--samples"):
        run([single], QUICK)
    several = open_source(probe(tmp_path / "two", 60, samples=2, temperature=0.6))
    assert len(rows_of(run([several], QUICK), "temperature")) == 2


def test_other_questions_are_refused(tmp_path: Path) -> None:
    first = probe(tmp_path / "one", 60)
    other = probe(tmp_path / "warm", 120, temperature=0.6)
    found = RunDirectory.load(other)
    found.rewrite(found.records()[60:])
    with pytest.raises(StudyError, match="warm and one have no question in common"):
        run([open_source(first), open_source(other)], QUICK)
