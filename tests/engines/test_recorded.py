"""Recorded traces get the same forced answers as the live traces they were recorded from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from stopadvisor.collection.collect import make_prompts
from stopadvisor.probes.asking import ProbePlan, Prompt, RawTrace
from stopadvisor.workload.questions import RecordedTrace
from tests.engines.fake_server import fake_server
from tests.engines.test_openai_engine import engine_at
from tests.engines.tiny import traces_of
from tests.material import easiest

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine

PLAN = ProbePlan((0, 8, 32, 64), cue="\n\nFinal answer:", max_think=100, greedy=True)


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return make_prompts(easiest(5), None)


def recorded(prompts: Sequence[Prompt], traces: Sequence[RawTrace]) -> list[Prompt]:
    """Attach the live traces to their prompts, as text."""
    return [
        replace(prompt, recorded=RecordedTrace("t:1", trace.thinking, trace.natural_text))
        for prompt, trace in zip(prompts, traces, strict=False)
    ]


def check_equal(found: Sequence[RawTrace], live: Sequence[RawTrace]) -> None:
    for one, other in zip(found, live, strict=True):
        assert replace(one, probes=()) == replace(other, probes=())
        for probe, expected in zip(one.probes, other.probes, strict=True):
            near = {k: pytest.approx(getattr(expected, k), abs=1e-4) for k in FIGURES}
            assert vars(probe) == {**vars(expected), **near}


FIGURES = ("mean_logprob", "mean_entropy")


@pytest.mark.integration
@pytest.mark.parametrize(
    "plan",
    [replace(PLAN, on_stop="answer", answer_cap=24), replace(PLAN, cue="open:\nAnswer:")],
    ids=["answer", "open"],
)
def test_probes_of_recorded_thinking_are_those_of_live_thinking(
    tiny_reasoner: HfEngine, prompts: list[Prompt], plan: ProbePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = traces_of(tiny_reasoner, prompts, plan)
    assert {trace.finish for trace in live} == {"stop", "length"}  # both kinds
    monkeypatch.setattr(
        "stopadvisor.engines.hf.local_model.RollingBatch",
        lambda *_: pytest.fail("thinking is drawn"),
    )
    check_equal(traces_of(tiny_reasoner, recorded(prompts, live), plan), live)
    # Under a smaller cap, the recorded thinking is cut there.
    cut = traces_of(
        tiny_reasoner, recorded(prompts, live), replace(plan, max_think=16, budgets=(0, 8))
    )
    assert {(trace.trace_tokens, trace.finish) for trace in cut} == {(16, "length")}


@pytest.mark.integration
def test_thinking_that_ended_without_its_closer_is_not_cut(
    tiny_reasoner: HfEngine, prompts: list[Prompt]
) -> None:
    traces = [RecordedTrace("t:1", "7 - 5", None, ended) for ended in (True, False)]
    asked = [replace(p, recorded=t) for p, t in zip(prompts, traces, strict=False)]
    found = traces_of(tiny_reasoner, asked, PLAN)
    assert [trace.finish for trace in found] == ["stop", "length"]
    assert [trace.natural_text for trace in found] == [None, None]


@pytest.mark.parametrize(
    "plan", [PLAN, replace(PLAN, on_stop="answer"), replace(PLAN, max_think=9)]
)
def test_a_server_is_asked_for_answers_alone(prompts: list[Prompt], plan: ProbePlan) -> None:
    plan = replace(plan, budgets=(0, 4, 8), entropy="top-k:20")
    with fake_server() as server, engine_at(server) as engine:
        live = traces_of(engine, prompts[:3], plan)
        server.asked.clear()
        found = traces_of(engine, recorded(prompts, live), plan)
        opened = {tuple(engine.chat.prompt_ids(prompt.messages)) for prompt in prompts[:3]}
        assert not opened & {tuple(body["prompt"]) for body in server.asked}
    check_equal(found, live)
