"""Answers inside open thinking: both engines give the same text, figures and stops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from stopadvisor.engines.answer_end import AnswerStops
from stopadvisor.engines.chat import Marker
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import make_requests, policy_plan
from stopadvisor.probes.asking import Engine, OnStop, RawTrace
from stopadvisor.workload.questions import read_workload
from tests.engines.fake_server import TINY, Story, fake_server, ids_of, words
from tests.engines.online_policies import bound
from tests.engines.test_openai_engine import PLAN, engine_at, probed, prompts
from tests.engines.tiny import Reference, Reprefill, plan, prompt, traces_of
from tests.policy_content import open_cue_content

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine

Script = Callable[[Sequence[Sequence[int]]], None]

CLOSE = 261
"""Of the byte tokenizer."""
OPEN_PLAN = replace(PLAN, cue=f"open:{PLAN.cue}")


def plain_answer(
    found: Reference, ends: set[int], white: set[int], closer: int
) -> tuple[int, int, bool]:
    """Return the tokens taken, the tokens of the answer, and whether the closer follows."""
    own = None
    for at, token in enumerate(found.ids):
        if token == closer:
            return at + 1, at if own is None else own, True
        if own is not None and token not in white:
            return at + 1, own, False
        if own is None and token in ends:
            own = at
    return len(found.ids), len(found.ids) if own is None else own, False


def test_probes_equal_reading_everything_again(
    random_engine: HfEngine, random_reference: Reprefill, script: Script
) -> None:
    engine, ends = replace(random_engine), set(range(5, 260, 5))
    at = plan([0, 2, 5, 11, 20, 39], cue="open:\n\nAnswer:", answer_cap=7)
    thinking = [int(i) for i in np.random.default_rng(3).integers(4, 260, 30)]
    script([[*thinking, CLOSE, 3]])
    suffix = engine.encode("\n\nAnswer:")
    assert engine.suffix_ids(at.cue) == suffix
    start = engine.chat.prompt_ids(prompt("a").messages)
    plain = [random_reference.forced([*start, *thinking[:b], *suffix], at.cap) for b in at.budgets]
    # What follows an answer here is what closes the thinking there.
    after = [p.ids[i + 1] for p in plain for i, t in enumerate(p.ids[:-1]) if t in ends]
    closer = after[0]
    chat = replace(engine.chat, closer=Marker("closer", (closer,)))
    engine.stops = replace(AnswerStops.of(engine.chat, (3,), 262), chat=chat)
    flags = engine.stops.flags.copy()
    flags[sorted(ends)] |= 2 | 8  # they hold a newline, and end the line
    engine.stops = replace(engine.stops, flags=flags)

    (trace,) = traces_of(engine, [prompt("a")], at)
    white = {i for i in range(4, 262) if not chat.decode([i], special=True).strip()}
    expected = [plain_answer(p, ends, white, closer) for p in plain]
    assert {closed for _, _, closed in expected} == {True, False}
    assert trace.suffix_tokens == len(suffix)
    for probe, reference, (taken, own, closed) in zip(trace.probes, plain, expected, strict=True):
        assert probe.closed_by_itself is closed
        assert probe.probe_tokens == taken
        counted = max(1, own)
        assert probe.mean_logprob == pytest.approx(reference.logprobs[:counted].mean(), abs=5e-5)
        assert probe.mean_entropy == pytest.approx(reference.entropies[:counted].mean(), abs=5e-5)


@pytest.mark.parametrize(
    ("said", "text", "closed", "requests", "tokens"),
    [
        (" 5\n</think>\n\nIt is 5", " 5", True, 2, " 5\n</think>"),
        (" 5</think>\n", " 5", True, 1, " 5</think>"),
        (" 5\n\n</think>", " 5", True, 2, " 5\n\n</think>"),
        (" 5\nWait", " 5", False, 2, " 5\nWait"),
        (" 5", " 5", False, 1, " 5"),
    ],
    ids=["after a newline", "at once", "after two newlines", "thinks on", "end"],
)
@pytest.mark.parametrize("obeys_stop", [True, False])
def test_what_follows_an_answer_is_asked_for(
    said: str, text: str, closed: bool, requests: int, tokens: str, obeys_stop: bool
) -> None:
    story = Story(forced=lambda at: said, cue=OPEN_PLAN.cue)
    with fake_server(story=story, obeys_stop=obeys_stop) as server, engine_at(server) as engine:
        (trace,) = traces_of(engine, prompts(1), replace(OPEN_PLAN, budgets=(4,)))
        forced = [body for body in server.asked if body.get("logprobs")]
    (probe,) = trace.probes
    assert (probe.text, probe.closed_by_itself) == (text, closed)
    assert probe.probe_tokens == len(ids_of(tokens)) + (said == " 5")
    assert probe.mean_logprob == probed(replace(PLAN, budgets=(4,))).probes[0].mean_logprob
    if obeys_stop:
        assert len(forced) == requests
        closer = len(words().closer.ids)
        assert [body["max_tokens"] for body in forced[1:]] == [closer] * (requests - 1)


# --- Early exit -----------------------------------------------------------------------------------


def closing_policy(engine: Engine, on_stop: OnStop, **changes: Any) -> Policy:
    """Stops exactly where the model closes its thinking after the answer."""
    content = open_cue_content(
        features=["closed_by_itself"],
        mean=[0.0],
        scale=[1.0],
        coef=[2.0],
        intercept=0.0,
        decision_threshold=1.0,
        order=[],
        on_stop=on_stop,
        threshold=1 / (1 + math.exp(-1.0)),
    )
    return bound(engine, content, **changes)


def test_it_stops_where_the_recorded_probe_was_followed_by_the_closer(
    tiny_reasoner: HfEngine,
) -> None:
    questions = read_workload(TINY.parent / "hard.jsonl").questions[:3]
    kinds: tuple[OnStop, ...] = ("answer", "probe")
    traces: list[RawTrace] = []  # with answers of both kinds
    for on_stop in kinds:
        policy = closing_policy(tiny_reasoner, on_stop, budgets=[0, 100, 120], max_think=130)
        requests, own = make_requests(questions, policy), policy_plan(policy)
        assert own.cue == OPEN_PLAN.cue
        traces = traces or traces_of(tiny_reasoner, [r.prompt for r in requests], own)
        replies = dict(tiny_reasoner.serve(requests, own, policy, batch_size=3))
        stops = 0
        for number, trace in enumerate(traces):
            first = next((p for p in trace.probes if p.closed_by_itself and not p.ended), None)
            reply = replies[number]
            assert reply.budget == (None if first is None else first.budget)
            if first is not None:
                stops += 1
                assert reply.text == (first.text if on_stop == "probe" else first.visible_text)
        assert 0 < stops < len(traces)


@pytest.mark.parametrize(
    ("on_stop", "text"), [("probe", " 7"), ("answer", "Final answer: 7")], ids=str
)
def test_a_server_stops_there_too(on_stop: OnStop, text: str) -> None:
    forced = {0: " 5\nWait", 4: " 5\nWait", 12: " 7\n</think>"}
    story = Story(forced=lambda at: forced[at], cue=OPEN_PLAN.cue)
    with fake_server(story=story) as server, engine_at(server) as engine:
        policy = closing_policy(
            engine, on_stop, budgets=[0, 4, 12], entropy_source="top-k:20",
            sampling={"greedy": True, "temperature": None, "seed": 5},
        )  # fmt: skip
        own = policy_plan(policy, at_server=True)
        asked = make_requests(["3+4"], policy)
        ((_, reply),) = engine.serve(asked, own, policy)
        sent = [body["prompt"] for body in server.asked]
    assert (reply.budget, reply.text, reply.answer, reply.n_probes) == (12, text, "7", 3)
    assert reply.thinking == words().decode(ids_of(story.thinking)[:12])
    if on_stop == "answer":  # after the thinking and its closer, without the trial answer
        seen = [*ids_of(story.thinking)[:12], *words().closer.ids]
        assert seen in [ids[-len(seen) :] for ids in sent]
