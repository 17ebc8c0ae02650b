"""Study `cues`: a brittle cue is told from a weak model, and other differences are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from stopadvisor.ground.constants import CUES
from stopadvisor.ground.errors import StudyError
from stopadvisor.paper.peaks import learned_peak
from stopadvisor.paper.protocol import PaperSetting
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.sources import open_source
from stopadvisor.stats.intervals import paired_difference
from tests.studies.material import QUICK, Archive, row_of, study
from tests.studies.related_runs import probe

run = study("cues")

BRITTLE = frozenset({"brittle-words"})


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("cues")
    first = probe(root / "terse", faults=BRITTLE)
    return first, probe(root / "words", faults=BRITTLE, cue=CUES["the-answer-is"])


def test_a_brittle_cue_loses_what_the_model_knows(pair: tuple[Path, Path]) -> None:
    sources = [open_source(path) for path in pair]
    found = run(sources, QUICK)
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
        run([first], QUICK)
    other = open_source(probe(tmp_path / "cap", 60, faults=BRITTLE, cap=32))
    with pytest.raises(StudyError, match=r"plan\.cue only; cap against terse: plan\.cap: 48 there"):
        run([first, other], QUICK)


def test_archives_do_not_say_their_cue(archive: Archive) -> None:
    with pytest.raises(StudyError, match="is an archive"):
        run([archive(name) for name in ("mixed", "early")], QUICK)


def test_traces_that_were_cut_say_nothing_of_the_cue(tmp_path: Path) -> None:
    # Cut before the last budget: a forced answer is there, a natural one is not.
    paths = [probe(tmp_path / name, 120, cue=cue, max_think=40) for name, cue in CUES.items()]
    sources = [open_source(path) for path in paths]
    fit = sources[0].part("fit")
    assert fit.truncated.any()
    row = row_of(run(sources, QUICK), "against", run="terse")
    assert row["ended"] == (~fit.truncated).sum()
