"""Runs in one folder: looks at the same probes count, wherever they were taken."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.ground.errors import CalibrationError, ProbeError
from stopadvisor.probes.asking import ProbePlan
from stopadvisor.runs.access import NeighbourLooks, neighbour_looks, take_look
from stopadvisor.runs.look_log import Look, digests_of, record_shown
from stopadvisor.runs.sources import Source, open_source
from tests.material import BUDGETS, forget_looks, make_run, write_archive
from tests.runs.test_replies import TWO, reply, run_of

DEEP = "[" * 100_000
"""JSON nested more deeply than Python reads."""


def lines_of(source: Source) -> set[str]:
    return {line for key in source.part("calibration").keys for line in source.lines[key]}


def looked(source: Source, **asked: Any) -> Look:
    keys = digests_of(source.part("calibration").keys)
    return take_look(source.folder, keys, asked, delta=0.05, lines=lines_of(source))


def neighbours_of(source: Source) -> NeighbourLooks:
    keys = set(digests_of(source.part("calibration").keys))
    return neighbour_looks(source.folder, keys, lines_of(source))


@pytest.fixture
def run(tmp_path: Path) -> Source:
    return open_source(make_run(tmp_path / "runs" / "one", 60))


def test_a_question_keeps_its_line_in_a_run_that_grows(run: Source) -> None:
    grown = open_source(make_run(run.folder, 80))
    assert len({line for lines in run.lines.values() for line in lines}) == 60
    assert {key: grown.lines[key] for key in run.lines} == run.lines


def test_a_look_at_a_copy_counts(run: Source, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "runs" / "copy")
    look = looked(run, alpha=0.1)
    copy = open_source(tmp_path / "runs" / "copy")
    found = neighbours_of(copy)
    assert (found.same, found.elsewhere) == ({"one": (look,)}, 0)
    assert neighbours_of(run).same == {}
    # Even after questions were added.
    grown = open_source(make_run(copy.folder, 80))
    assert neighbours_of(grown).same == {"one": (look,)}


def test_other_probes_of_the_same_questions_are_only_counted(run: Source, tmp_path: Path) -> None:
    plan = ProbePlan(budgets=BUDGETS[:5], cue="\n\nFinal answer:", max_think=256)
    make_run(tmp_path / "runs" / "two", 60, plan=plan)
    looked(run, alpha=0.1)
    other = open_source(tmp_path / "runs" / "two")
    found = neighbours_of(other)
    assert (found.same, found.elsewhere) == ({}, 1)


def test_splits_of_one_archive_hold_the_same_probes(tmp_path: Path) -> None:
    file = write_archive(tmp_path / "raw.npz")
    first, second = (
        open_source(file, folder=tmp_path / "runs" / f"seed{k}", seed=k) for k in (0, 1)
    )
    look = looked(first, alpha=0.1)
    assert neighbours_of(second).same == {"seed0": (look,)}
    # The rows of another archive have the same names.
    other = write_archive(tmp_path / "other.npz", think_lens=first.table.trace_tokens + 1)
    third = open_source(other, folder=tmp_path / "runs" / "other", seed=0)
    found = neighbours_of(third)
    assert (found.same, found.elsewhere, found.remarks) == ({}, 0, ())
    # A broken log may hold looks at rows of its own archive.
    (first.folder / "looks.jsonl").unlink()
    assert len(neighbours_of(third).remarks) == 1
    with pytest.raises(ProbeError, match=r"seed0/looks\.jsonl: .* its looks count"):
        neighbours_of(second)


def test_fit_questions_of_another_split_certify_nothing(tmp_path: Path) -> None:
    """The luckiest of 12 categories by another split's fit part: 11.6 % false at delta = 5 %."""
    file = write_archive(tmp_path / "raw.npz")
    first, second = (
        open_source(file, folder=tmp_path / "runs" / f"seed{k}", seed=k) for k in (0, 1)
    )
    assert neighbours_of(second).shown == frozenset()
    keys = digests_of(second.part("calibration").keys)
    record_shown(first.folder, first.part("fit").keys, "assess")
    found = neighbours_of(second)
    assert found.shown == {*digests_of(first.part("fit").keys)} & {*keys}
    with pytest.raises(CalibrationError, match="in a run next to this one that holds the same"):
        take_look(second.folder, keys, {}, delta=0.05, neighbours=found)
    # A copy has the same fit questions, and other probes tell nothing.
    copy = shutil.copytree(first.folder, tmp_path / "runs" / "copy")
    assert neighbours_of(open_source(copy)).shown == frozenset()
    other = write_archive(tmp_path / "other.npz", think_lens=first.table.trace_tokens + 1)
    third = open_source(other, folder=tmp_path / "runs" / "other", seed=1)
    assert neighbours_of(third).shown == frozenset()


def test_a_ladders_broken_log_stops_its_copies(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    lines = [
        {"id": f"q{k}", "gold": "1", "rungs": [reply("small", 1), reply("large", 1)]}
        for k in range(20)
    ]
    one = run_of(tmp_path / "runs", lines, TWO, fit=0.5)
    copy = shutil.copytree(one.folder, tmp_path / "runs" / "copy")
    looked(one, alpha=0.1)
    (one.folder / "looks.jsonl").unlink()
    with pytest.raises(ProbeError, match=r"run/looks\.jsonl: .* its looks count"):
        neighbours_of(open_source(copy))


@pytest.mark.parametrize("spoilt", ["{", DEEP, None], ids=["damaged", "deep", "missing"])
def test_a_neighbours_broken_log_stops_only_runs_with_the_same_probes(
    run: Source, tmp_path: Path, spoilt: str | None
) -> None:
    shutil.copytree(run.folder, tmp_path / "runs" / "copy")
    looked(run, alpha=0.1)
    (run.folder / "looks.jsonl").unlink()
    if spoilt is not None:
        (run.folder / "looks.jsonl").write_text(spoilt, encoding="utf-8")
    copy = open_source(tmp_path / "runs" / "copy")
    with pytest.raises(ProbeError, match=r"one/looks\.jsonl: .* its looks count"):
        neighbours_of(copy)
    plan = ProbePlan(budgets=BUDGETS[:5], cue="\n\nFinal answer:", max_think=256)
    other = open_source(make_run(tmp_path / "runs" / "two", 60, plan=plan))
    (remark,) = neighbours_of(other).remarks
    assert "one/looks.jsonl" in remark
    assert "put back the log" in remark
    forget_looks(run.folder)
    assert neighbours_of(copy).same == {}
