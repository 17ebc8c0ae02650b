"""Visible answers at every checkpoint, compared with plain generation and with serving."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import make_requests, policy_plan
from stopadvisor.probes.asking import ProbePlan, Prompt, RawTrace
from tests.engines.online_policies import bound
from tests.engines.tiny import Reprefill, plan, prompt, traces_of
from tests.material import easiest
from tests.policy_content import family_content

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine

pytestmark = pytest.mark.slow

BUDGETS = (0, 5, 17, 30, 200)


def check_visible(
    reference: Reprefill, engine: HfEngine, question: Prompt, trace: RawTrace, at: ProbePlan
) -> int:
    """Compare each visible answer with plain generation; return their number."""
    start = engine.chat.prompt_ids(question.messages)
    closer = list(engine.chat.closer.ids)
    thinking = list(trace.thinking_ids)
    assert reference.likeliest(start, thinking) == thinking
    n_live = 0
    for probe in trace.probes:
        if probe.ended:
            assert (probe.visible_text, probe.visible_tokens) == (None, 0)
            continue
        n_live += 1
        prefix = [*start, *thinking[: probe.budget], *closer]
        plain = list(reference.forced(prefix, at.answer_cap, engine.stop_ids).ids)
        shown = plain[:-1] if plain[-1] in engine.stop_ids else plain
        assert probe.visible_text == engine.chat.decode(shown)
        assert probe.visible_tokens == len(plain) + len(closer)
    return n_live


def without_visible(trace: RawTrace) -> RawTrace:
    """Return the trace without its visible answers."""
    nothing: dict[str, Any] = {"visible_text": None, "visible_tokens": 0}
    return replace(trace, probes=tuple(replace(p, **nothing) for p in trace.probes))


@pytest.mark.parametrize(("kind", "answer_cap"), [("full", 6), ("windowed", 6), ("full", 1)])
def test_equal_reading_everything_again(
    kind: str, answer_cap: int, engines: dict[str, HfEngine], references: dict[str, Reprefill]
) -> None:
    engine, reference = engines[kind], references[kind]
    questions = [prompt("q" * n) for n in (1, 9, 30, 4)]
    at = plan(BUDGETS, greedy=True, on_stop="answer", answer_cap=answer_cap)
    found = traces_of(engine, questions, at)
    live = [
        check_visible(reference, engine, question, trace, at)
        for question, trace in zip(questions, found, strict=True)
    ]
    assert sum(live) > 8
    # The forced answers and the traces are what they are without.
    for trace, alone in zip(
        found, traces_of(engine, questions, replace(at, on_stop="probe")), strict=True
    ):
        assert without_visible(trace) == without_visible(alone)


def test_at_own_positions_equal_reading_everything_again(
    random_engine: HfEngine, random_reference: Reprefill
) -> None:
    """The traces have different positions, and different numbers of them."""
    questions = [prompt("q" * n) for n in (1, 9, 30, 4)]
    bare = traces_of(random_engine, questions, plan(greedy=True))
    # Tokens of the traces themselves, so that each has markers.
    marks = tuple({trace.thinking_ids[5:6] for trace in bare if trace.trace_tokens > 6})
    at = plan(
        greedy=True, schedule="marker", markers=marks, max_markers=3, on_stop="answer"
    ).with_stride(11)
    found = traces_of(random_engine, questions, at)
    live = [
        check_visible(random_reference, random_engine, question, trace, at)
        for question, trace in zip(questions, found, strict=True)
    ]
    assert live == [len(trace.probes) for trace in found]
    assert len({tuple(p.budget for p in trace.probes) for trace in found}) > 2


def test_of_a_real_model_end_by_themselves(
    tiny_reasoner: HfEngine, tiny_reference: Reprefill
) -> None:
    policy = _stops_at(tiny_reasoner, 24, temperature=None)
    prompts = [request.prompt for request in make_requests(easiest(1), policy)]
    at = replace(policy_plan(policy), budgets=(0, 10, 24), greedy=True, answer_cap=40)
    for question, trace in zip(prompts, traces_of(tiny_reasoner, prompts, at), strict=True):
        assert check_visible(tiny_reference, tiny_reasoner, question, trace, at)


def _stops_at(engine: HfEngine, budget: int, *, temperature: float | None) -> Policy:
    """A policy that stops every question at a budget; without it thinking is cut soon after."""
    sampling = {"greedy": False, "temperature": temperature, "seed": 5}
    content = family_content("confidence", -1e9)
    own = {"sampling": sampling, "budgets": [budget], "on_stop": "answer", "max_think": 40}
    return bound(engine, content, **own)


@pytest.mark.parametrize("temperature", [None, 0.7], ids=["greedy", "sampled"])
def test_are_those_that_serving_gives(temperature: float | None, tiny_reasoner: HfEngine) -> None:
    budgets = (10, 23)
    policies = [_stops_at(tiny_reasoner, budget, temperature=temperature) for budget in budgets]
    requests = make_requests(easiest(9), policies[0])
    probing = replace(policy_plan(policies[0]), budgets=budgets)
    traces = traces_of(tiny_reasoner, [request.prompt for request in requests], probing)
    n_stopped = 0
    for position, policy in enumerate(policies):
        plan = policy_plan(policy)
        for index, reply in tiny_reasoner.serve(requests, plan, policy, batch_size=4):
            probe = traces[index].probes[position]
            assert probe.ended == (reply.stopped_at is None)
            if probe.ended:
                continue
            n_stopped += 1
            assert (probe.visible_text, probe.visible_tokens) == (reply.text, reply.visible_tokens)
    assert n_stopped > 10
