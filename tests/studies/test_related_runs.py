"""Studies `cues` and `temperature`: runs over the same sums that differ in one thing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stopadvisor.ground.constants import CUES
from stopadvisor.ground.errors import StudyError
from stopadvisor.paper.peaks import learned_peak
from stopadvisor.paper.protocol import PaperSetting
from stopadvisor.probes.records import graded_table
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import open_source
from stopadvisor.stats.intervals import paired_difference
from tests.studies.material import QUICK, Archive, probe, row_of, rows_of, study

# --- `cues` ---------------------------------------------------------------------------------------


BRITTLE = frozenset({"brittle-words"})


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("cues")
    first = probe(root / "terse", faults=BRITTLE)
    return first, probe(root / "words", faults=BRITTLE, cue=CUES["the-answer-is"])


@pytest.mark.slow
def test_a_brittle_cue_loses_what_the_model_knows(pair: tuple[Path, Path]) -> None:
    sources = [open_source(path) for path in pair]
    found = study("cues")(sources, QUICK)
    fit_keys = set(sources[0].part("fit").keys)
    right: dict[str, dict[str, bool]] = {}
    for path in pair:
        records = [r for r in RunDirectory.load(path).records() if r.key in fit_keys]
        right[path.name] = {r.key: bool(r.checkpoints[-1].correct) for r in records}
        over = [r for r in records if r.finish == "stop" and r.checkpoints[-1].ended]
        row = row_of(found, "against", run=path.name)
        lost = [bool(r.natural_correct) and not r.checkpoints[-1].correct for r in over]
        assert row["ended"] == len(over)
        assert row["lost_by_cue"] == pytest.approx(sum(lost) / len(lost))
        natural = [bool(r.natural_correct) for r in over]
        assert row["natural_accuracy"] == pytest.approx(sum(natural) / len(natural))
        row = row_of(found, "cues", run=path.name)
        assert row["full_accuracy"] == pytest.approx(sum(right[path.name].values()) / len(records))
        assert row["mean_think_tokens"] == pytest.approx(
            sum(r.trace_tokens for r in records) / len(records)
        )
    fit = sources[0].part("fit").with_reference("last-checkpoint")
    gain = learned_peak(PaperSetting.build(fit)).gain
    assert row_of(found, "cues", run="terse")["peak_gain"] == gain
    # Not one forced answer is right: there is nothing to learn, which is a finding, no failure.
    assert row_of(found, "cues", run="words")["peak_gain"] is None
    assert any(remark.startswith("words: no peak gain") for remark in found.remarks)
    first, second = (right[path.name] for path in pair)
    gained = sum(second[k] and not first[k] for k in first)
    lost_too = sum(first[k] and not second[k] for k in first)
    row = row_of(found, "against", run="words")
    assert row["difference"] == pytest.approx((gained - lost_too) / len(first))
    limits = paired_difference(gained, lost_too, len(first))
    assert (row["difference_low"], row["difference_high"]) == pytest.approx(limits)
    assert row["difference_high"] < 0
    assert row_of(found, "against", run="terse")["difference"] is None
    assert any("fit questions alone" in remark for remark in found.remarks)


def test_runs_that_differ_otherwise_are_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    first = open_source(pair[0])
    with pytest.raises(StudyError, match="two runs or more that differ in their cue"):
        study("cues")([first], QUICK)
    other = open_source(probe(tmp_path / "cap", 60, faults=BRITTLE, cap=32))
    with pytest.raises(StudyError, match=r"plan\.cue only; cap against terse: plan\.cap: 48 there"):
        study("cues")([first, other], QUICK)


def test_archives_do_not_say_their_cue(archive: Archive) -> None:
    with pytest.raises(StudyError, match="is an archive"):
        study("cues")([archive(name) for name in ("mixed", "early")], QUICK)


def test_traces_that_were_cut_say_nothing_of_the_cue(tmp_path: Path) -> None:
    # Cut before the last budget: a forced answer is there, a natural one is not.
    paths = [probe(tmp_path / name, 120, cue=cue, max_think=40) for name, cue in CUES.items()]
    sources = [open_source(path) for path in paths]
    fit = sources[0].part("fit")
    assert fit.truncated.any()
    row = row_of(study("cues")(sources, QUICK), "against", run="terse")
    assert row["ended"] == (~fit.truncated).sum()


# --- `temperature` --------------------------------------------------------------------------------


@pytest.mark.slow
def test_runs_and_samples_are_rows(tmp_path: Path) -> None:
    paths = [
        probe(tmp_path / "greedy", 80, greedy=True),
        probe(tmp_path / "warm", 80, temperature=0.6, seed=7),
        probe(tmp_path / "two", 80, samples=2, temperature=0.6),
        probe(tmp_path / "own", 80),
    ]
    found = study("temperature")([open_source(path) for path in paths], QUICK)
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


@pytest.mark.slow
def test_one_run_needs_several_samples(tmp_path: Path) -> None:
    single = open_source(probe(tmp_path / "one", 60))
    with pytest.raises(StudyError, match="--samples"):
        study("temperature")([single], QUICK)
    several = open_source(probe(tmp_path / "two", 60, samples=2, temperature=0.6))
    assert len(rows_of(study("temperature")([several], QUICK), "temperature")) == 2


@pytest.mark.slow
def test_other_questions_are_refused(tmp_path: Path) -> None:
    first = probe(tmp_path / "one", 60)
    other = probe(tmp_path / "warm", 120, temperature=0.6)
    found = RunDirectory.load(other)
    found.rewrite(found.records()[60:])
    with pytest.raises(StudyError, match="warm and one have no question in common"):
        study("temperature")([open_source(first), open_source(other)], QUICK)
