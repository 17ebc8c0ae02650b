"""Settling the cap on thinking, the cue's tokens and the budgets before probing."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopadvisor.collection.pilot import (
    auto_budgets,
    auto_stride,
    cue_ids,
    expected_cost,
    settle_plan,
    thinking_cap,
)
from stopadvisor.collection.probe_settings import ProbeSettings
from stopadvisor.ground.constants import PAPER_BUDGETS
from stopadvisor.ground.errors import ModelError, ProbeError
from stopadvisor.ground.progress import Progress
from stopadvisor.probes.asking import ProbePlan, Prompt, RawTrace
from stopadvisor.workload.questions import Question, Workload, read_workload
from tests.scripted import ScriptedEngine, write_sums

PLAN = ProbePlan(budgets=(0, 16, 32, 64), cue="\n\nFinal answer:", max_think=256)


@pytest.fixture
def questions(tmp_path: Path) -> tuple[Question, ...]:
    return read_workload(write_sums(tmp_path / "sums.jsonl", 30)).questions


# --- The cap on thinking, the cue -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("context", "asked", "cap"),
    [
        pytest.param(None, 8192, 8192, id="no limit"),
        pytest.param(100_000, 8192, 8192, id="room enough"),
        pytest.param(1024, 8192, 448, id="in steps, for questions a little longer"),
        pytest.param(560, 8192, 26, id="less than a step"),
        pytest.param(1024, 300, 300, id="what is asked fits"),
    ],
)
def test_an_auto_cap_is_what_the_context_leaves(
    questions: tuple[Question, ...], context: int | None, asked: int, cap: int
) -> None:
    engine, plan = ScriptedEngine(context=context), replace(PLAN, budgets=(0, 16), max_think=asked)
    assert thinking_cap(engine, questions, plan, auto=True) == cap


def test_a_cap_beyond_the_context_is_refused(questions: tuple[Question, ...]) -> None:
    engine, plan = ScriptedEngine(context=1024), replace(PLAN, max_think=600)
    late = replace(plan, budgets=(0, 100, 500))
    with pytest.raises(
        ModelError, match=r"must be at most 490, got 600: .*; in a new run auto takes 448"
    ):
        thinking_cap(engine, questions, plan)
    with pytest.raises(
        ModelError, match=r"--budgets must end at --max-think 448 or before, got 500"
    ):
        thinking_cap(engine, questions, late, auto=True)
    far = replace(PLAN, budgets=(0, 9000), max_think=8192)
    with pytest.raises(ModelError, match=r"--budgets must end at --max-think 8192 or before"):
        thinking_cap(ScriptedEngine(), questions, far, auto=True)


def test_tokens_of_the_cue_come_without_the_closer() -> None:
    engine = ScriptedEngine()
    assert [2, *cue_ids(engine, "ab")] == engine.suffix_ids("ab")
    assert cue_ids(engine, "open:ab") == engine.suffix_ids("open:ab") == cue_ids(engine, "ab")


# --- Budgets --------------------------------------------------------------------------------------


def test_auto_budgets_have_the_papers_shape() -> None:
    assert auto_budgets([1536] * 5) == PAPER_BUDGETS
    assert auto_budgets(range(201)) == (0, 15, 22, 30, 45, 60, 75, 90, 120, 180)


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=32))
def test_auto_budgets_rise_from_zero_to_the_ninetieth_percentile(lengths: list[int]) -> None:
    budgets = auto_budgets(lengths)
    assert budgets[0] == 0
    assert budgets[-1] == round(np.quantile(lengths, 0.9))
    assert all(a < b for a, b in pairwise(budgets))
    assert len(budgets) <= len(PAPER_BUDGETS)


@pytest.mark.parametrize("lengths", [[], [0, 0, 0]], ids=["no traces", "no thinking"])
def test_auto_budgets_need_thinking(lengths: list[int]) -> None:
    with pytest.raises(ProbeError, match="must contain thinking"):
        auto_budgets(lengths)


@pytest.mark.parametrize(
    ("length", "every"), [(8192, 256), (3000, 96), (500, 16), (400, 12), (120, 4), (20, 1), (2, 1)]
)
def test_an_auto_stride_is_a_round_part_of_a_long_trace(length: int, every: int) -> None:
    assert auto_stride([length] * 8) == every


def test_an_auto_stride_needs_thinking() -> None:
    with pytest.raises(ProbeError, match=r"must contain thinking .* give --every"):
        auto_stride([0, 0, 0])


def test_the_pilot_draws_traces_only_of_at_most_32_questions(tmp_path: Path) -> None:
    workload = read_workload(write_sums(tmp_path / "sums.jsonl", 80))
    engine = ScriptedEngine(memory=8)
    plan, settings = replace(PLAN, budgets=()), ProbeSettings(workload.path)
    settled = settle_plan(
        engine, workload.questions, plan, settings, batch_size=16, progress=Progress()
    )
    assert settled.plan.budgets == auto_budgets([t.trace_tokens for t in settled.pilot])
    drawn = [key for keys, _ in engine.calls if len(keys) <= 8 for key in keys]
    assert drawn == [q.key for q in workload.questions[:32]]
    assert {plan.budgets for _, plan in engine.calls} == {(0, 32, PLAN.max_think)}
    again = engine.probe(_prompts(workload, 8), PLAN)
    assert [t.thinking_ids for t in settled.pilot[:8]] == [t.thinking_ids for t in again]
    assert len(settled.pilot) == 32


def _prompts(workload: Workload, n: int) -> list[Prompt]:
    return [Prompt(q.key, q.messages) for q in workload.questions[:n]]


# --- What that costs ------------------------------------------------------------------------------


def trace(tokens: int) -> RawTrace:
    """A trace of some thinking tokens and 7 of its visible answer."""
    return RawTrace(9, 3, tokens, "stop", "", "7", 7, (), thinking_ids=(5,) * tokens)


def test_budgets_beyond_the_end_of_thinking_share_a_probe_that_stops_nothing() -> None:
    plan, traces = replace(PLAN, budgets=(0, 20, 50)), [trace(10), trace(30), trace(50)]
    cost = expected_cost(plan, traces, answer_tokens=4.0)
    assert cost is not None
    assert cost.probes == pytest.approx((2 + 3 + 3) / 3)
    assert cost.decoded_tokens == pytest.approx(4 * 8 / 3)
    assert cost.share_of_thinking == pytest.approx(32 / 90)
    assert str(cost) == ("about 2.7 probes a question, 11 decoded tokens, 36% of its thinking")
    visible = expected_cost(replace(plan, on_stop="answer"), traces, answer_tokens=4.0)
    assert visible is not None
    assert visible.decoded_tokens == pytest.approx((4 * 8 + 7 * (1 + 2 + 2)) / 3)
    unthinking = expected_cost(plan, [trace(0)], answer_tokens=4.0)
    assert str(unthinking) == "about 1.0 probes a question, 4 decoded tokens"
    assert expected_cost(replace(plan, budgets=()), traces, 4.0) is None
