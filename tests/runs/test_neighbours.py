"""Runs in one folder: looks at the same probes count, wherever they were taken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.errors import ProbeError
from stopadvisor.probes.outcomes import SealedQuestions
from stopadvisor.probes.plan import ProbePlan
from stopadvisor.runs.ledger import Look, LookRequest, take_looks
from stopadvisor.runs.neighbours import looks_beside, probe_digests
from stopadvisor.runs.sources import Source, open_source
from tests.material import BUDGETS, forget_looks, make_run, write_archive

DEEP = "[" * 100_000
"""JSON nested more deeply than Python reads."""


def looked(source: Source, **request: Any) -> Look:
    questions = source.part("calibration")
    probes = probe_digests(questions)
    ask = LookRequest(questions.keys, request, 0.05, probes=probes)
    (look,) = take_looks(source.folder, [ask])
    return look


def calibration(source: Source) -> SealedQuestions:
    return source.part("calibration")


@pytest.fixture
def run(tmp_path: Path) -> Source:
    return open_source(make_run(tmp_path / "runs" / "one", 60))


def test_digests_are_of_a_question_s_own_probes(run: Source) -> None:
    table, more = run.table, open_source(make_run(run.folder, 80)).table
    assert len(set(probe_digests(table))) == 60
    assert set(probe_digests(table)) < set(probe_digests(more))


def test_a_look_at_a_copy_counts(run: Source, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "runs" / "copy")
    look = looked(run, alpha=0.1)
    copy = open_source(tmp_path / "runs" / "copy")
    assert looks_beside(copy, calibration(copy)).same == {"one": (look,)}
    assert looks_beside(run, calibration(run)).same == {}
    # Though it was given more questions since.
    grown = open_source(make_run(copy.folder, 80))
    assert looks_beside(grown, calibration(grown)).same == {"one": (look,)}


def test_a_look_from_before_the_chain_counts_for_a_copy(run: Source, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "runs" / "copy")
    row: dict[str, Any] = {
        "number": 1,
        "planned": None,
        "delta": 0.05,
        "spent": 0.05,
        "request": {},
        "questions": list(calibration(run).keys),
        "created": "2026-01-01T00:00:00+00:00",
    }
    text = json.dumps({"schema": 1, "looks": [row]})
    (run.folder / "ledger.json").write_text(text, encoding="utf-8")
    copy = open_source(tmp_path / "runs" / "copy")
    ((name, (look,)),) = looks_beside(copy, calibration(copy)).same.items()
    assert (name, look.number) == ("one", 1)


def test_other_probes_of_the_same_questions_are_only_counted(run: Source, tmp_path: Path) -> None:
    plan = ProbePlan(budgets=BUDGETS[:5], cue="\n\nFinal answer:", max_think=256)
    make_run(tmp_path / "runs" / "two", 60, plan=plan)
    looked(run, alpha=0.1)
    other = open_source(tmp_path / "runs" / "two")
    found = looks_beside(other, calibration(other))
    assert (found.same, found.elsewhere) == ({}, 1)


def test_splits_of_one_archive_hold_the_same_probes(tmp_path: Path) -> None:
    file = write_archive(tmp_path / "raw.npz")
    first, second = (
        open_source(file, folder=tmp_path / "runs" / f"seed{k}", seed=k) for k in (0, 1)
    )
    look = looked(first, alpha=0.1)
    assert looks_beside(second, calibration(second)).same == {"seed0": (look,)}
    # The rows of another archive have the same names.
    other = write_archive(tmp_path / "other.npz", think_lens=first.table.trace_tokens + 1)
    third = open_source(other, folder=tmp_path / "runs" / "other", seed=0)
    found = looks_beside(third, calibration(third))
    assert (found.same, found.elsewhere) == ({}, 0)


@pytest.mark.parametrize("spoilt", ["{", DEEP, None], ids=["damaged", "deep", "missing"])
def test_a_broken_ledger_next_door_stops_only_who_holds_its_probes(
    run: Source, tmp_path: Path, spoilt: str | None
) -> None:
    shutil.copytree(run.folder, tmp_path / "runs" / "copy")
    looked(run, alpha=0.1)
    (run.folder / "ledger.json").unlink()
    if spoilt is not None:
        (run.folder / "ledger.json").write_text(spoilt, encoding="utf-8")
    copy = open_source(tmp_path / "runs" / "copy")
    with pytest.raises(ProbeError, match=r"one/ledger\.json: .* its looks count"):
        looks_beside(copy, calibration(copy))
    plan = ProbePlan(budgets=BUDGETS[:5], cue="\n\nFinal answer:", max_think=256)
    other = open_source(make_run(tmp_path / "runs" / "two", 60, plan=plan))
    (remark,) = looks_beside(other, calibration(other)).remarks
    assert "one/ledger.json" in remark
    assert "put back the ledger" in remark
    forget_looks(run.folder)
    assert looks_beside(copy, calibration(copy)).same == {}
