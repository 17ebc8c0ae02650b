"""Comparing answer cues: the same traces, one row a cue, a brittle one seen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from stopadvisor.answers.grading import Grader
from stopadvisor.collection.cues import CueComparison, compare_cues
from stopadvisor.ground.constants import CUES
from stopadvisor.ground.errors import EngineError
from stopadvisor.probes.asking import ProbePlan
from stopadvisor.workload.questions import Question, read_workload
from tests.scripted import ScriptedEngine, write_sums

PLAN = ProbePlan(budgets=(0, 40), cue=CUES["terse"], max_think=256)


@pytest.fixture
def questions(tmp_path: Path) -> tuple[Question, ...]:
    return read_workload(write_sums(tmp_path / "sums.jsonl", 40)).questions


def compare(
    engine: ScriptedEngine, questions: tuple[Question, ...], cues: Mapping[str, str] = CUES
) -> CueComparison:
    with Grader() as grader:
        return compare_cues(engine, questions, PLAN, cues, grader=grader, batch_size=16)


def test_cues_share_their_traces(questions: tuple[Question, ...]) -> None:
    engine = ScriptedEngine()
    found = compare(engine, questions)
    assert [row.name for row in found.rows] == ["terse", "no-reasoning", "the-answer-is"]
    assert found.n_questions == 40
    first = found.rows[0]
    for row in found.rows:
        assert (row.status, row.agreement, row.same_traces) == ("pass", 1.0, 1.0)
        assert row.forced_accuracy == found.natural_accuracy
        assert row.ci95 is not None
        assert row.forced_accuracy is not None
        assert row.ci95[0] < row.forced_accuracy < row.ci95[1]
        assert row.mean_think_tokens == first.mean_think_tokens
        assert 0 < row.mean_probe_tokens < 10
    assert {plan.budgets for _, plan in engine.calls} == {(256,)}
    assert [plan.cue for _, plan in engine.calls[::3]] == list(CUES.values())


def test_a_brittle_cue_is_seen(questions: tuple[Question, ...]) -> None:
    engine = ScriptedEngine(faults=frozenset({"brittle-words"}))
    found = compare(engine, questions, {**CUES, "yours": " So:"})
    assert [row.status for row in found.rows] == ["pass", "fail", "fail", "fail"]
    assert found.rows[3].cue == " So:"
    assert found.rows[1].agreement == 0.0
    assert found.natural_accuracy is not None
    assert found.rows[1].forced_accuracy is not None
    assert found.rows[1].forced_accuracy < 0.2 < found.natural_accuracy
    json.dumps(asdict(found), allow_nan=False)


def test_traces_that_differ_are_counted(questions: tuple[Question, ...]) -> None:
    found = compare(ScriptedEngine(faults=frozenset({"unseeded"})), questions)
    assert [row.same_traces for row in found.rows] == [1.0, 0.0, 0.0]


def test_without_a_finished_trace_there_is_no_agreement(questions: tuple[Question, ...]) -> None:
    found = compare(ScriptedEngine(faults=frozenset({"never-closes"})), questions)
    assert {(row.status, row.agreement) for row in found.rows} == {("fail", None)}
    json.dumps(asdict(found), allow_nan=False)


def test_comparing_needs_a_question() -> None:
    with pytest.raises(EngineError, match="at least one fit question, got none"):
        compare(ScriptedEngine(), ())
