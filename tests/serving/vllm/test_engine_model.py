"""Requests of one model in the engine: what is asked, how urgently, and in how many outputs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from stopadvisor.engines.trace import Trace
from stopadvisor.ground.errors import EngineError
from stopadvisor.probes.asking import Prompt
from stopadvisor.serving.vllm.engine_model import EngineModel, EngineThinking
from tests.engines.fake_server import Story
from tests.engines.test_openai_online import NEVER
from tests.policy_content import family_content
from tests.serving.vllm.fake_engine import QUESTION, FakeEngine, bound_at, policy_of
from tests.serving.vllm.test_route import asked, client_of


def begun(model: EngineModel, limit: int | None = None) -> Trace:
    prompt_ids = model.chat.prompt_ids(QUESTION)
    return model.begin(prompt_ids, Prompt("a", tuple(QUESTION)), limit)


@pytest.mark.parametrize("by_priority", [True, False])
def test_probes_come_first_where_the_engine_schedules_by_priority(by_priority: bool) -> None:
    engine = FakeEngine()
    client = client_of(engine, policy_of(on_stop="answer"), by_priority=by_priority)
    asyncio.run(client.ask(asked()))
    found = {kind: priority for kind, _, _, priority in engine.asked}
    assert found == {"think": 0, "probe": -1 if by_priority else 0, "answer": 0}
    probe = next(vars(parameters) for kind, _, parameters, _ in engine.asked if kind == "probe")
    assert probe["temperature"] == 0.0
    assert "logprobs" not in probe, "the rule reads answers alone"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "policy"), [("think", {**NEVER, "budgets": [4]}), ("answer", {"on_stop": "answer"})]
)
def test_tokens_come_in_few_outputs_if_nobody_waits_for_them(
    kind: str, policy: dict[str, Any], stream: bool
) -> None:
    story = Story(visible="so it is five, as shown above, and so the final answer: 5")
    engine = FakeEngine(story)
    asyncio.run(client_of(engine, policy_of(**policy)).ask(asked(stream=stream)))
    ((outputs, tokens),) = (
        (engine.outputs[name], engine.decoded[name]) for name in engine.outputs if kind in name
    )
    assert tokens > 20
    assert outputs == tokens if stream else outputs <= 5


def test_a_request_has_its_own_seed_and_may_have_a_limit_in_place_of_the_caps() -> None:
    model = bound_at(FakeEngine()).model
    assert model.for_request("one", None).drawn == model.drawn
    own = model.for_request("two", 7)
    assert (own.name, own.drawn) == ("two", {**model.drawn, "seed": 7})
    caps = model.plan.max_think + model.plan.answer_cap + len(model.chat.closer.ids)
    assert (begun(model).end.most, begun(model, 9).end.most) == (caps, 9)


def test_a_trace_that_is_over_is_not_continued() -> None:
    engine = FakeEngine()
    model = bound_at(engine).model
    trace = begun(model)
    trace.end.over = True
    assert asyncio.run(model.finish(trace)) == 0
    assert engine.asked == []


@pytest.mark.parametrize(("max_think", "closed"), [(400, True), (10, False)])
def test_a_stopped_trace_is_continued_to_its_end_and_no_further(
    max_think: int, closed: bool
) -> None:
    engine = FakeEngine()
    model = bound_at(engine).model.for_request("chat-1", None)
    trace, whole = begun(model), engine.story.after(())
    trace.end.max_think = max_think
    trace.take(whole[:4])
    tokens = asyncio.run(model.finish(trace))
    assert trace.ids == (whole if closed else whole[: max_think + 1])
    assert (tokens, trace.end.closed) == (len(trace.ids) - 4, closed)
    assert engine.decoded == {"chat-1-audit": tokens}


@pytest.mark.parametrize(
    ("thinking", "tokens", "outputs"),
    [
        (300, 151, 4),  # not closed: at 1, 65, 129 and where it has to be
        (60, 69, 3),  # the answer is cut after 8 tokens, which is known from 65 on
        (0, 9, 2),
    ],
)
def test_a_trace_that_nobody_reads_is_woken_seldom_and_decodes_nothing_in_vain(
    thinking: int, tokens: int, outputs: int
) -> None:
    engine = FakeEngine(Story(thinking="7" * thinking, visible="7" * 300))
    model = bound_at(engine).model.for_request("chat-1", None)
    trace = begun(model)
    trace.end.max_think, trace.end.answer_cap = 150, 8

    async def think() -> None:
        drawing = EngineThinking(model, trace, None, seldom=True)
        await drawing.reach(None)
        await drawing.give_up()

    asyncio.run(think())
    assert (len(trace.ids), trace.end.cut) == (tokens, thinking > 150)
    assert engine.decoded == {"chat-1-think": tokens}
    assert engine.outputs == {"chat-1-think": outputs}


def test_what_was_decoded_of_a_trace_that_is_given_up_is_counted() -> None:
    engine = FakeEngine(Story(thinking="7" * 300))
    model = bound_at(engine).model.for_request("chat-1", None)
    trace = begun(model)

    async def think() -> None:
        drawing = EngineThinking(model, trace, None, seldom=True)
        await drawing.reach(5)
        assert len(trace.ids) == 5
        while engine.decoded["chat-1-think"] < 9:
            await asyncio.sleep(0)
        await drawing.give_up()

    asyncio.run(think())
    assert len(trace.ids) == engine.decoded["chat-1-think"] >= 9


@pytest.mark.parametrize("hangs", [(), ("think",)])
def test_only_a_trace_that_has_not_ended_is_aborted(hangs: tuple[str, ...]) -> None:
    engine = FakeEngine(hangs=hangs)
    model = bound_at(engine).model.for_request("chat-1", None)

    async def think() -> None:
        drawing = EngineThinking(model, begun(model), None, seldom=False)
        if not hangs:
            await drawing.reach(None)
        await drawing.give_up()

    asyncio.run(think())
    assert engine.ended == ({"chat-1-think"} if hangs else set())


def test_the_likeliest_tokens_enclose_the_entropy_unless_it_is_to_be_precise() -> None:
    policy = policy_of(family_content("entropy"), entropy_source="full")
    engine = FakeEngine()
    model = bound_at(engine, policy, max_logprobs=-1).model.for_request("chat-1", None)
    trace = begun(model)
    trace.take(engine.story.after(())[:4])
    bounded = asyncio.run(model.force(trace, 4))
    exact = asyncio.run(model.force(trace, 4, precise=True))
    assert [parameters.logprobs for _, _, parameters, _ in engine.asked] == [64, -1]
    assert abs(bounded.mean_entropy - exact.mean_entropy) <= bounded.entropy_slack < 0.3
    assert exact.entropy_slack == 0.0


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([([5], "abort")], "gave up a forced answer"),
        ([([], "stop")], "gave up a forced answer"),
        ([], "ended a request without an output"),
    ],
    ids=["aborted", "empty", "none"],
)
def test_a_forced_answer_that_the_engine_gives_up_is_none(
    outputs: list[tuple[list[int], str]], message: str
) -> None:
    async def generate(*_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        for ids, reason in outputs:
            new = SimpleNamespace(token_ids=ids, finish_reason=reason, logprobs=None)
            yield SimpleNamespace(outputs=[new])

    engine: Any = SimpleNamespace(generate=generate)
    model = replace(bound_at(FakeEngine()).model, engine=engine)
    with pytest.raises(EngineError, match=message):
        asyncio.run(model.force(begun(model), 0))
