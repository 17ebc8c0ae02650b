"""Traces and forced answers over HTTP, ended by our rules whatever the server's are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.from_thread import start_blocking_portal

from stopadvisor.engines.openai import open_servers
from stopadvisor.engines.openai.each import ask_each
from stopadvisor.engines.openai.engine import OpenAiEngine
from stopadvisor.ground.constants import CUES
from stopadvisor.ground.errors import EngineError, ModelError
from stopadvisor.probes.asking import ProbePlan, Prompt, RawTrace
from tests.engines.fake_server import FakeServer, Story, end_id, fake_server, ids_of, logprob, words
from tests.engines.tiny import traces_of

PLAN = ProbePlan(
    budgets=(0, 4, 12, 200), cue=CUES["terse"], max_think=200, greedy=True, entropy="top-k:20"
)
THINKING = Story().thinking
LENGTH = len(ids_of(THINKING))
CLOSER = len(words().closer.ids)


@contextmanager
def engine_at(
    server: FakeServer, *, name: str = "tiny-reasoner", **options: Any
) -> Iterator[OpenAiEngine]:
    options = {"concurrency": 4, "retry_timeout": 5.0, **options}
    engine = open_servers(name, [server.url], **options)
    server.asked.clear()
    try:
        yield engine
    finally:
        engine.close()


def prompts(n: int) -> list[Prompt]:
    return [Prompt(f"k{i}", ({"role": "user", "content": f"{i}+4"},)) for i in range(n)]


def probed(plan: ProbePlan = PLAN, **settings: Any) -> RawTrace:
    with fake_server(**settings) as server, engine_at(server) as engine:
        (trace,) = traces_of(engine, prompts(1), plan)
    return trace


def test_a_trace_and_its_probes() -> None:
    trace = probed()
    assert trace.thinking == THINKING
    assert (trace.trace_tokens, trace.finish) == (LENGTH, "stop")
    assert trace.natural_text == "Final answer: 7"
    assert trace.natural_tokens == CLOSER + len(ids_of("Final answer: 7")) + 1
    assert [p.budget for p in trace.probes] == [0, 4, 12, 200]
    assert [p.think_tokens for p in trace.probes] == [0, 4, 12, LENGTH]
    assert [p.text for p in trace.probes] == [" 5", " 5", " 7", " 7"]
    assert [p.ended for p in trace.probes] == [False, False, False, True]
    assert trace.probes[-1].markers == 1
    assert trace.suffix_tokens == CLOSER + len(ids_of(PLAN.cue))
    # Means leave out the newline that ended the answer.
    answer, probe = ids_of(" 5"), trace.probes[0]
    assert probe.probe_tokens == len(answer) + 1
    assert probe.mean_logprob == pytest.approx(sum(map(logprob, answer)) / len(answer))


def test_visible_answers_stand_at_own_positions() -> None:
    wait = tuple(ids_of("Wait"))
    plan = replace(PLAN, schedule="marker", budgets=(4,), markers=(wait,), on_stop="answer")
    trace = probed(plan)
    at = ids_of(THINKING).index(wait[0])
    assert trace.marker_positions == (at,)
    assert [p.budget for p in trace.probes] == [4, at]
    assert [p.visible_text for p in trace.probes] == ["Final answer: 7"] * 2


def test_a_request_ends_at_the_first_newline() -> None:
    with fake_server() as server, engine_at(server) as engine:
        traces_of(engine, prompts(1), PLAN)
    forced = [body for body in server.asked if body.get("logprobs")]
    assert {tuple(body["stop"]) for body in forced} == {("\n",)}
    assert {body["max_tokens"] for body in forced} == {PLAN.cap}
    assert all(end_id() in body["stop_token_ids"] for body in server.asked)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (" 5\n and more", " 5"),
        ("\n\n 5\n", "\n\n 5"),  # a newline before content ends nothing
        (" \\boxed{5} and more", " \\boxed{5}"),
        (" 5", " 5"),
        ("", ""),
    ],
    ids=["newline", "leading newlines", "box", "end", "nothing"],
)
@pytest.mark.parametrize("obeys_stop", [True, False])
@pytest.mark.parametrize("sends_end", [True, False])
def test_answers_end_as_with_the_local_engine(
    said: str, text: str, obeys_stop: bool, sends_end: bool
) -> None:
    story = Story(forced=lambda tokens: said)
    plan = replace(PLAN, budgets=(0,), entropy="top-k:20" if said or sends_end else "none")
    (probe,) = probed(plan, story=story, obeys_stop=obeys_stop, sends_end=sends_end).probes
    assert probe.text == text
    ended = ids_of(text + "\n") if "\n" in said.lstrip() else [*ids_of(text), end_id()]
    assert probe.probe_tokens == (len(ids_of(text)) if "boxed" in said else len(ended))


def test_an_answer_is_cut_at_the_cap() -> None:
    story = Story(forced=lambda tokens: " 1" * 30)
    (probe,) = probed(replace(PLAN, budgets=(0,), cap=6), story=story).probes
    assert (probe.probe_tokens, probe.text) == (6, " 1" * 6)


@pytest.mark.parametrize("sends_end", [True, False])
def test_thinking_that_ends_without_being_closed(sends_end: bool) -> None:
    story = Story()
    story.after = lambda generated: [*ids_of("3+4"), end_id()][len(generated) :]  # type: ignore[method-assign]
    trace = probed(replace(PLAN, budgets=()), story=story, sends_end=sends_end)
    assert (trace.thinking, trace.finish) == ("3+4", "stop")
    assert (trace.natural_text, trace.natural_tokens) == (None, 0)


@pytest.mark.parametrize("sends_end", [True, False])
@pytest.mark.parametrize(
    ("visible", "cap", "tokens"),
    [("Final answer: 7", 512, None), ("", 512, 1), ("Final answer: 7", 1, 1)],
    ids=["whole", "the end alone", "cut after a token"],
)
def test_visible_answers_after_a_stop(
    visible: str, cap: int, tokens: int | None, sends_end: bool
) -> None:
    plan = replace(PLAN, on_stop="answer", answer_cap=cap)
    trace = probed(plan, story=Story(visible=visible), sends_end=sends_end)
    text = words().decode(ids_of(visible)[:cap])
    taken = CLOSER + (len(ids_of(visible)) + 1 if tokens is None else tokens)
    assert (trace.natural_text, trace.natural_tokens) == (text, taken)
    assert [p.visible_text for p in trace.probes] == [text] * 3 + [None]
    assert [p.visible_tokens for p in trace.probes] == [taken] * 3 + [0]


def test_a_limit_of_the_servers_own_cuts_nothing() -> None:
    plan = replace(PLAN, on_stop="answer")
    assert probed(plan, at_most=3) == probed(plan)


def test_the_context_cuts_thinking_earlier() -> None:
    with fake_server(context=100) as server, engine_at(server) as engine:
        room = engine.longest_thinking(prompts(1), replace(PLAN, answer_cap=20))
        (ids,) = (engine.chat.prompt_ids(p.messages) for p in prompts(1))
        after = max(CLOSER + 20, len(engine.suffix_ids(PLAN.cue)) + PLAN.cap)
        assert room == 100 - len(ids) - after
        with pytest.raises(ModelError, match="leaves no room for thinking"):
            traces_of(engine, prompts(1), replace(PLAN, answer_cap=90))


def test_every_question_once_and_no_more_requests_than_asked_for() -> None:
    with fake_server(delay=0.02) as server, engine_at(server, concurrency=3) as engine:
        traces = traces_of(engine, prompts(12), PLAN)
        lengths = [len(engine.chat.prompt_ids(p.messages)) for p in prompts(12)]
    assert [trace.prompt_tokens for trace in traces] == lengths
    assert server.most_at_once == 3
    assert len(server.asked) == 12 * (1 + len(PLAN.budgets))


def test_a_question_stays_at_the_server_that_caches_its_prefix() -> None:
    with fake_server() as first, fake_server() as second:
        engine = open_servers("tiny-reasoner", [first.url, second.url], concurrency=4)
        for server in (first, second):
            server.asked.clear()
        traces_of(engine, prompts(10), PLAN)
        engine.close()
    lengths = {len(words().prompt_ids(p.messages)) for p in prompts(10)}
    assert len(lengths) == 1  # so that a question's prompt can be cut off its prefixes
    (length,) = lengths
    for server in (first, second):
        questions = [tuple(body["prompt"][:length]) for body in server.asked]
        assert len(set(questions)) == 5
        assert len(questions) == 5 * (1 + len(PLAN.budgets))


def test_what_is_finished_before_a_failure_is_handed_out() -> None:
    with fake_server() as server, engine_at(server, concurrency=1, retry_timeout=0.3) as engine:
        found = []
        asked = engine.probe_each(prompts(50), PLAN)

        def read() -> None:
            for pair in asked:
                found.append(pair)
                if len(found) >= 3:
                    server.always = "500"

        with pytest.raises(EngineError, match="no answer"):
            read()
    assert 3 <= len(found) < 50


def test_leaving_early_stops_the_work() -> None:
    with fake_server(delay=0.02) as server, engine_at(server, concurrency=2) as engine:
        asked = engine.probe_each(prompts(200), PLAN)
        next(asked)
        asked.close()  # type: ignore[attr-defined]
        time.sleep(0.2)
        count = len(server.asked)
        time.sleep(0.2)
        assert len(server.asked) == count < 200


@pytest.mark.parametrize(
    ("settings", "entropy", "message"),
    [
        ({}, "full", "--entropy must be top-k:20 or less at this server"),
        ({}, "top-k:21", "which gives 20 log-probabilities per token, got 'top-k:21'"),
        ({"top_limit": 0}, "top-k:1", "--entropy must be none or less"),
    ],
)
def test_entropy_that_the_server_does_not_give(
    settings: dict[str, Any], entropy: str, message: str
) -> None:
    with (
        fake_server(**settings) as server,
        engine_at(server) as engine,
        pytest.raises(ModelError) as caught,
    ):
        traces_of(engine, prompts(1), replace(PLAN, entropy=entropy))
    assert message in str(caught.value)
    assert not server.asked


def test_without_log_probabilities_texts_remain() -> None:
    with fake_server(top_limit=0) as server, engine_at(server) as engine:
        assert engine.capabilities.entropy == "none"
        (trace,) = traces_of(engine, prompts(1), replace(PLAN, entropy="none"))
    assert [p.text for p in trace.probes] == [" 5", " 5", " 7", " 7"]
    assert {(p.mean_logprob, p.mean_entropy, p.tail_mass) for p in trace.probes} == {(0, 0, None)}


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda s: setattr(s, "returns_ids", False), "returns no token ids"),
        (lambda s: setattr(s, "top_limit", 0), "no log-probabilities for some of"),
        (lambda s: setattr(s, "refuses", lambda body: 400), "refuses the request: 400 not here"),
    ],
    ids=["ids", "log-probabilities", "refusal"],
)
def test_a_server_that_changes_its_ways_ends_the_run(
    break_it: Callable[[FakeServer], None], message: str
) -> None:
    with fake_server() as server, engine_at(server) as engine:
        break_it(server)
        with pytest.raises(EngineError) as caught:
            traces_of(engine, prompts(1), PLAN)
    assert message in str(caught.value)
    assert caught.value.exit_code == 1


def test_a_consumer_that_waits_holds_the_work_up() -> None:
    asked: list[int] = []

    async def ask(item: int) -> int:
        asked.append(item)
        return item

    async def pass_by() -> None:
        for _ in range(1000):
            await anyio.lowlevel.checkpoint()

    with fake_server() as server, engine_at(server) as engine:
        results = ask_each(engine.portal, range(200), ask, 4)
        next(results)
        engine.portal.call(pass_by)
        assert len(asked) == 8  # four that are asked, and as many results that nobody took
        assert sorted(number for number, _ in results) == sorted(set(range(200)) - {0})


def test_what_is_asked_at_once_begins_in_one_turn() -> None:
    """So that a local model can batch it."""
    asked: list[int] = []

    async def ask(item: int) -> int:
        asked.append(item)
        await anyio.lowlevel.checkpoint()
        return len(asked)

    with start_blocking_portal() as portal:
        assert list(dict(ask_each(portal, range(4), ask, 4)).values()) == [4] * 4


@pytest.mark.parametrize(
    ("settings", "statuses"),
    [
        ({}, {}),
        ({"ignores_limits": True}, {"server-obeys": "fail"}),
        ({"counts_cached": False}, {"server-caches": "warn"}),
    ],
    ids=["good", "ignores limits", "silent about its cache"],
)
def test_preflight_tries_the_server_itself(
    settings: dict[str, Any], statuses: dict[str, str]
) -> None:
    with fake_server(**settings) as server, engine_at(server) as engine:
        (prompt,) = prompts(1)
        found = {f.name: f for f in engine.engine_checks(prompt, PLAN)}
    assert list(found) == ["server-obeys", "resumes", "server-caches", "top-k"]
    wrong = {name: f.status for name, f in found.items() if f.status != "pass"}
    assert statuses.items() <= wrong.items()
    assert all(f.advice for f in found.values() if f.status != "pass")
    if "server-obeys" in wrong:  # what was checked, and no product
        advice = "use a server that obeys max_tokens and stop_token_ids and takes ids as sent"
        assert found["server-obeys"].advice == advice
    if not statuses:
        assert not wrong
