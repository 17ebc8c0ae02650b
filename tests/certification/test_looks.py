"""Looks: planned before an outcome is open, recorded in the log, and only then handed out."""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stopadvisor.assessment.choice import Settings
from stopadvisor.certification.looks import (
    named_settings,
    open_calibration,
    open_for_paper,
    open_rows,
    plan_look,
    planned_labels,
    spent_in_fit,
    take,
    without_shown_fit,
    without_used,
)
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.rules.losses import Guarantee
from stopadvisor.runs.access import closed_questions, open_all, unsealed_rows
from stopadvisor.runs.look_log import digests_of, read_log, record_result
from stopadvisor.runs.sources import Source, open_source
from stopadvisor.runs.storage import lock_neighbours
from stopadvisor.workload.questions import PARTS
from tests.material import looks_of, make_run


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("probed") / "run", 60)


@pytest.fixture
def source(probed: Path, tmp_path: Path) -> Source:
    return open_source(shutil.copytree(probed, tmp_path / "run"))


def test_a_planned_look_opens_nothing_until_it_is_taken(source: Source) -> None:
    questions = source.part("calibration")
    plan = plan_look(source, questions, {"alpha": 0.1}, delta=0.1, looks=2)
    assert (plan.test_delta, plan.n_earlier) == (0.05, 0)
    assert looks_of(source.folder) == []

    taken = take(plan)
    assert [look.asked["alpha"] for look in looks_of(source.folder)] == [0.1]
    assert taken.look.test_delta == plan.test_delta
    assert taken.questions.keys == questions.keys
    assert taken.remarks == ()
    same = take(plan_look(source, questions, {"alpha": 0.1}, delta=0.1, looks=None))
    assert (same.look, same.remarks) == (taken.look, ()), "the same look is no further one"

    # The plan of the first look stands where nothing is said, and the second knows of the first.
    again = plan_look(source, questions, {"alpha": 0.2}, delta=0.1, looks=None)
    assert (again.planned, again.n_earlier) == (2, 1)
    second = take(again)
    assert second.look.number == 2
    assert "looked at before (1 recorded)" in second.remarks[0]


def test_copies_that_plan_at_once_know_of_each_other_when_they_look(source: Source) -> None:
    copy = open_source(shutil.copytree(source.folder, source.folder.with_name("copy")))
    plans = [
        plan_look(each, each.part("calibration"), {"alpha": alpha}, delta=0.05, looks=None)
        for each, alpha in ((source, 0.1), (copy, 0.2))
    ]
    first, second = map(take, plans)
    assert (first.look.number, second.look.number) == (1, 2)
    assert second.look.earlier == (0.05,)
    assert second.look.spent == 0.1
    assert "run next to this run holds the same probes" in second.remarks[0]


def test_the_same_look_next_door_gets_a_line_of_its_own(source: Source) -> None:
    copy = open_source(shutil.copytree(source.folder, source.folder.with_name("copy")))
    first, second = (
        take(plan_look(each, each.part("calibration"), {"alpha": 0.1}, delta=0.05, looks=None))
        for each in (source, copy)
    )
    assert (first.look.number, second.look.number) == (1, 1)
    assert record_result(copy.folder, second.look, certified=True).certified is True


def test_copies_are_refused_what_was_certified_since_they_planned(source: Source) -> None:
    copy = open_source(shutil.copytree(source.folder, source.folder.with_name("copy")))
    late = plan_look(copy, copy.part("calibration"), {"alpha": 0.2}, delta=0.05, looks=None)
    plan = plan_look(source, source.part("calibration"), {"alpha": 0.1}, delta=0.05, looks=None)
    record_result(source.folder, take(plan).look, certified=True)
    with pytest.raises(CalibrationError, match="in run, which holds the same probes"):
        take(late)
    assert looks_of(copy.folder) == []


@pytest.mark.parametrize("alpha", [0.1, 0.2], ids=["same look", "another"])
def test_a_plan_that_a_copy_declared_since_is_not_ignored(source: Source, alpha: float) -> None:
    copy = open_source(shutil.copytree(source.folder, source.folder.with_name("copy")))
    late = plan_look(copy, copy.part("calibration"), {"alpha": alpha}, delta=0.05, looks=None)
    take(plan_look(source, source.part("calibration"), {"alpha": 0.1}, delta=0.05, looks=2))
    with pytest.raises(CalibrationError, match="must be declared with the first look"):
        take(late)


def test_only_one_of_neighbouring_runs_looks_at_a_time(source: Source) -> None:
    with lock_neighbours(source.folder):
        other = os.open(source.folder.parent, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


def test_settings_that_were_not_given_are_not_named() -> None:
    given: dict[str, Any] = {
        "loss": "differs",
        "also": (Guarantee("differs", 0.1),),
        "on_give_up": "reply",
    }
    plain = named_settings(Settings(alpha=0.1))
    assert plain.keys() == {  # else looks of older logs are other ones
        *("alpha", "serving", "weights", "cache_block", "families"),
        *("allow_truncated", "seed"),
    }
    for name, value in given.items():
        assert named_settings(replace(Settings(alpha=0.1), **{name: value})).keys() - plain == {
            name
        }


@pytest.mark.parametrize(
    ("asked", "answers"),
    [
        ({}, False),
        ({"loss": "differs"}, True),
        ({"also": [{"loss": "lost"}]}, False),
        ({"also": [{"loss": "differs"}]}, True),
        ({"asking": "drop"}, True),
    ],
)
def test_a_look_that_compares_answers_names_them(
    source: Source, asked: dict[str, Any], answers: bool
) -> None:
    plan = plan_look(source, source.part("calibration"), asked, delta=0.1, looks=None)
    assert source.fingerprint(answers=True) != source.fingerprint(answers=False)
    assert plan.asked["data"] == source.fingerprint(answers=answers)


def test_outcomes_shown_without_a_certificate_are_a_look(source: Source) -> None:
    rows = source.parts != PARTS.index("test")
    n = source.part("calibration").n_questions
    with pytest.raises(CalibrationError, match="still closed"):
        unsealed_rows(source, rows)
    opened, n_looked = open_rows(source, rows, {"policy": "x"}, delta=0.05)
    assert (opened.n_questions, n_looked) == (rows.sum(), n)
    (look,) = looks_of(source.folder)
    questions = source.part("calibration")
    assert look.questions == digests_of(questions.keys)
    assert set(look.lines) == {line for key in questions.keys for line in source.lines[key]}
    assert open_rows(source, rows, {"policy": "x"}, delta=0.05)[1] == 0
    assert open_rows(source, rows, {"policy": "y"}, delta=0.05)[1] == n
    assert [look.number for look in looks_of(source.folder)] == [1, 2]
    assert open_all(source).n_questions == source.table.n_questions


def test_fit_and_test_questions_take_no_look(source: Source) -> None:
    rows = source.parts != PARTS.index("calibration")
    opened, n_looked = open_rows(source, rows, {"policy": "x"}, delta=0.05)
    assert (opened.n_questions, n_looked) == (rows.sum(), 0)
    log = read_log(source.folder)
    assert log.looks == ()
    shown = set(digests_of(source.part("fit").keys))
    assert log.shown == shown, "those of the test part are never used"


def test_a_look_that_shows_outcomes_follows_the_plan_of_earlier_ones(source: Source) -> None:
    questions = source.part("calibration")
    take(plan_look(source, questions, {"alpha": 0.1}, delta=0.2, looks=2))
    open_rows(source, source.parts == PARTS.index("calibration"), {"policy": "x"}, delta=0.05)
    assert [(look.planned, look.delta) for look in looks_of(source.folder)] == [(2, 0.2)] * 2
    with pytest.raises(CalibrationError, match="all 2 planned looks"):
        open_rows(source, source.parts == PARTS.index("calibration"), {"policy": "y"}, delta=0.05)


def test_what_is_open_takes_no_further_look(source: Source) -> None:
    settings = Settings(alpha=0.1)
    with pytest.raises(CalibrationError, match="--open-calibration"):
        open_for_paper(source, settings, allowed=False)
    assert looks_of(source.folder) == []
    open_for_paper(source, settings, allowed=True)
    open_for_paper(source, settings, allowed=False)
    open_calibration(source, {"study": "peaks"}, delta=0.05)
    assert closed_questions(source) == set()
    assert [look.asked["protocol"] for look in looks_of(source.folder)] == ["paper"]


def test_used_questions_go_to_fit_and_a_look_that_was_taken_so_is_found_again(
    source: Source,
) -> None:
    asked = {"alpha": 0.1}
    questions = source.part("calibration")
    used = questions.take(np.arange(questions.n_questions) < 10)
    assert np.array_equal(spent_in_fit(source, asked).parts, source.parts)
    take(plan_look(source, used, {"alpha": 0.2}, delta=0.05, looks=None))
    fresh = spent_in_fit(source, asked)
    left = fresh.part("calibration")
    assert left.n_questions == questions.n_questions - 10
    assert set(fresh.part("fit").keys) == {*source.part("fit").keys, *used.keys}
    first = take(plan_look(fresh, left, asked, delta=0.05, looks=None))
    # The same settings mean the same look; others, that these questions are used as well.
    again = spent_in_fit(source, asked)
    assert np.array_equal(again.parts, fresh.parts)
    plan = plan_look(again, again.part("calibration"), asked, delta=0.05, looks=None)
    assert take(plan).look == first.look
    with pytest.raises(CalibrationError, match=f"--fresh: all {questions.n_questions} "):
        spent_in_fit(source, {"alpha": 0.3})


def test_questions_that_a_look_has_used_can_be_left_out(source: Source) -> None:
    questions = source.part("calibration")
    used = questions.take(np.arange(questions.n_questions) < 10)
    assert without_used(source, ("calibration",)).table.n_questions == 60
    take(plan_look(source, used, {"alpha": 0.1}, delta=0.05, looks=None))
    left = without_used(source, ("calibration",))
    assert left.part("calibration").n_questions == questions.n_questions - 10
    assert left.part("fit").n_questions == source.part("fit").n_questions
    take(plan_look(source, questions, {"alpha": 0.2}, delta=0.05, looks=None))
    with pytest.raises(CalibrationError, match="--fresh: all"):
        without_used(source, ("calibration",))


def test_fit_questions_that_were_shown_can_be_left_out(source: Source) -> None:
    asked = {"alpha": 0.1}
    joined = np.where(source.parts == PARTS.index("fit"), PARTS.index("calibration"), source.parts)
    both = replace(source, parts=joined.astype(np.int8))
    assert without_shown_fit(source, asked).table.n_questions == 60
    take(plan_look(both, both.part("calibration"), asked, delta=0.05, looks=None))
    open_rows(source, source.parts == PARTS.index("fit"), {"policy": "x"}, delta=0.05)
    assert without_shown_fit(source, asked).table.n_questions == 60, "the same look, taken before"
    left = without_shown_fit(source, {"alpha": 0.2})
    assert left.part("fit").n_questions == 0
    assert left.table.n_questions == 60 - source.part("fit").n_questions


@pytest.mark.parametrize("planned", [30, None])
def test_the_number_of_labels_is_that_of_the_first_look_once_its_figures_were_shown(
    source: Source, planned: int | None
) -> None:
    asked = {"alpha": 0.1}
    sampled = {} if planned is None else {"sampled_labels": planned}
    assert [planned_labels(source, asked, n, fresh=False) for n in (None, 5)] == [None, 5]
    look = take(
        plan_look(source, source.part("calibration"), {**asked, **sampled}, delta=0.05, looks=None)
    ).look
    other = {"alpha": 0.2}
    # The same look keeps its number; another one may name its own until figures are shown.
    for wanted in {None, planned}:
        assert planned_labels(source, asked, wanted, fresh=False) == planned
    assert [planned_labels(source, other, n, fresh=False) for n in (None, 5)] == [None, 5]
    record_result(source.folder, look, certified=True)
    named = "without --labels" if planned is None else "with --labels 30"
    for each in (asked, other):
        assert planned_labels(source, each, None, fresh=False) == planned
        with pytest.raises(CalibrationError, match=f"was taken {named}, and which .* --labels 5"):
            planned_labels(source, each, 5, fresh=False)
        assert planned_labels(source, each, 5, fresh=True) == 5
    assert planned_labels(source, asked, None, fresh=True) == planned
    assert planned_labels(source, other, None, fresh=True) is None
    # What was shown of other questions settles nothing here.
    rest = replace(source, parts=np.where(source.parts == 1, 0, 1).astype(np.int8))
    assert planned_labels(rest, other, 5, fresh=False) == 5


def test_a_second_look_is_found_again_where_it_left_off(source: Source) -> None:
    """Of three looks, each at half of what was left, the last two are repeated as they were."""
    taken, view = [], source
    for n, alpha in enumerate((0.1, 0.2, 0.3)):
        view = spent_in_fit(source, {"alpha": alpha})
        left = view.part("calibration")
        part = left.take(np.arange(left.n_questions) < (6 if n < 2 else left.n_questions))
        taken.append(take(plan_look(view, part, {"alpha": alpha}, delta=0.05, looks=None)).look)
    assert np.array_equal(spent_in_fit(source, {"alpha": 0.3}).parts, view.parts)
    assert [look.number for look in taken] == [1, 1, 1]
