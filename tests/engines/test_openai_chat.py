"""Chats that show their reasoning: probed where they answer behind what is given, else refused."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopadvisor.cli.main import main
from stopadvisor.engines.http.completion import Unfinished
from stopadvisor.engines.openai import load_engine
from stopadvisor.engines.openai.chat_stream import ChatReader, Cutter
from stopadvisor.engines.openai.early_exit import choose_thinking_mode
from stopadvisor.engines.openai.engine import OpenAiEngine
from stopadvisor.engines.openai.regime import RegimeMeasure
from stopadvisor.errors import EngineError, ModelError
from stopadvisor.policy.frozen import save_policy
from stopadvisor.policy.requests import Reply, make_requests, policy_plan
from stopadvisor.probes.plan import RawProbe
from tests.engines.fake_server import BREAKS, FAULTS, FakeServer, Story, fake_server, ids_of, words
from tests.engines.test_openai_engine import PLAN, probed, prompts
from tests.engines.test_openai_online import FORCED, policy_of

TEXT = replace(PLAN, entropy="none")
CHAT: dict[str, Any] = {"completions": False, "chat": "reasoning_content"}
VLLM = {**CHAT, "chat": "reasoning", "chat_form": "continue_final_message"}
DEEPSEEK = {**CHAT, "chat_form": "prefix"}
NEVER: dict[str, Any] = {"decision_threshold": 9.0, "threshold": 9.0}


@contextmanager
def chat_engine(server: FakeServer, **options: Any) -> Iterator[OpenAiEngine]:
    options = {"concurrency": 4, "retry_timeout": 5.0} | options
    engine = load_engine("tiny-reasoner", [server.url], **options)
    server.forget()
    try:
        yield engine
    finally:
        engine.close()


def silent(probe: RawProbe) -> RawProbe:
    return replace(probe, mean_logprob=0.0, mean_entropy=0.0, tail_mass=None)


# --- What it can do -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "form"), [(VLLM, "continue_final_message"), (DEEPSEEK, "prefix")], ids=str
)
def test_the_form_that_works_is_found(settings: dict[str, Any], form: str) -> None:
    with fake_server(**settings) as server, chat_engine(server) as engine:
        assert f"answers behind given reasoning ({form})" in engine.remarks[0]
        assert engine.identity()["engine"] == f"openai-chat ({form})"
        assert engine.capabilities.entropy == "none"


@pytest.mark.parametrize(
    ("settings", "reasons"),
    [
        (CHAT, ["continue_final_message: it begins a new reasoning", "prefix: it begins a new"]),
        ({**VLLM, "renders_reasoning": False}, ["the prompt grows by 0 tokens with the reasoning"]),
        ({**DEEPSEEK, "renders_content": False}, ["tokens with the start of the answer"]),
        ({**CHAT, "chat": "inline"}, ["reasoning among the answer's text"]),
    ],
    ids=str,
)
def test_what_does_not_work_is_refused_with_its_reason(
    settings: dict[str, Any], reasons: list[str]
) -> None:
    with fake_server(**settings) as server, pytest.raises(ModelError) as caught:
        load_engine("tiny-reasoner", [server.url], retry_timeout=1.0)
    said = str(caught.value)
    assert "cannot resume it (visible-stream)" in said
    assert "full budget and the provider's own effort setting" in said
    for reason in reasons:
        assert reason in said


class Mute(FakeServer):
    """Goes on with what would be reasoning as though it were the answer, as parsers may show it."""

    def _chat(self, body: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        pieces, usage = super()._chat(body)
        if body["messages"][-1]["role"] == "assistant":
            pieces = [{"delta": {"content": " 3"}, "finish_reason": "stop"}]
        return pieces, usage


def test_a_form_that_changes_nothing_is_found_out_by_the_prompt() -> None:
    server = Mute(**CHAT)
    server.start()
    try:
        with pytest.raises(ModelError, match="it has no effect"):
            load_engine("tiny-reasoner", [server.url], retry_timeout=1.0)
    finally:
        server.stop()


# --- Probing --------------------------------------------------------------------------------------


def test_a_chat_is_probed_before_its_markers() -> None:
    wait = tuple(ids_of("Wait"))
    marked = replace(TEXT, schedule="marker", budgets=(4,), markers=(wait,))
    with fake_server(**VLLM) as server, chat_engine(server) as engine:
        (by_chat,) = engine.probe(prompts(1), marked)
    by_ids = probed(marked)
    assert by_ids.marker_positions
    assert by_chat.marker_positions == by_ids.marker_positions
    assert [(p.budget, p.text) for p in by_chat.probes] == [
        (p.budget, p.text) for p in by_ids.probes
    ]


@pytest.mark.parametrize("settings", [VLLM, DEEPSEEK], ids=str)
def test_the_same_traces_and_answers_as_on_ids(settings: dict[str, Any]) -> None:
    exact = probed(PLAN)
    with fake_server(**settings) as server, chat_engine(server) as engine:
        (by_chat,) = engine.probe(prompts(1), TEXT)
    assert by_chat == replace(exact, probes=tuple(silent(p) for p in exact.probes))


def test_what_is_sent() -> None:
    with fake_server(**DEEPSEEK) as server, chat_engine(server) as engine:
        engine.probe(prompts(1), replace(TEXT, budgets=(4,)))
        drawn, *probes = server.asked
    assert [message["role"] for message in drawn["messages"]] == ["user"]
    assert drawn["stream"]
    last = probes[0]["messages"][-1]
    assert last["role"] == "assistant"
    assert last["prefix"]
    assert last["content"] == TEXT.cue
    assert Story().thinking.startswith(last["reasoning_content"])
    assert probes[0]["stop"] == ["\n"]
    # Fields that not every provider knows are left out where they say nothing.
    assert not {"top_k", "min_p", "repetition_penalty", "return_token_ids"} & set(drawn)


@pytest.mark.parametrize(
    ("forced", "text"), [("\n 7\n", "\n 7"), ("\n", "\n"), ("", ""), (" 7", " 7")]
)
def test_a_newline_before_content_ends_nothing(forced: str, text: str) -> None:
    with (
        fake_server(**VLLM, story=Story(forced=lambda tokens: forced)) as server,
        chat_engine(server) as engine,
    ):
        (trace,) = engine.probe(prompts(1), TEXT)
    assert {probe.text for probe in trace.probes} == {text}


@pytest.mark.parametrize("fault", [*BREAKS, *(f for f in FAULTS if f != "hang")])
def test_what_breaks_is_asked_again(fault: str) -> None:
    with fake_server(**VLLM) as server, chat_engine(server) as engine:
        (calm,) = engine.probe(prompts(1), TEXT)
        server.faults = [fault, "", fault]
        (found,) = engine.probe(prompts(1), TEXT)
    assert found == calm


def test_a_provider_that_ends_sooner_has_its_trace_cut() -> None:
    with fake_server(**VLLM) as server, chat_engine(server) as engine:
        server.at_most = 9
        (trace,) = engine.probe(prompts(1), replace(TEXT, budgets=(4,)))
    assert (trace.finish, trace.trace_tokens, trace.natural_text) == ("length", 9, None)


def test_visible_answers_and_log_probabilities_are_refused_by_name() -> None:
    with fake_server(**VLLM) as server, chat_engine(server) as engine:
        for plan, said in (
            (replace(TEXT, on_stop="answer"), "got --on-stop answer"),
            (PLAN, "--entropy must be none"),
        ):
            with pytest.raises(ModelError, match=said):
                engine.probe(prompts(1), plan)


def test_a_chat_that_leaves_empty_reasoning_out_is_not_asked_at_budget_0() -> None:
    with fake_server(**VLLM, renders_blank=False) as server, chat_engine(server) as engine:
        with pytest.raises(ModelError, match="leave 0 out of --budgets"):
            engine.probe(prompts(1), replace(TEXT, budgets=(0, 4)))
        (trace,) = engine.probe(prompts(1), replace(TEXT, budgets=(4,)))
    assert trace.probes[0].text == " 5"


def test_preflight_and_ramp() -> None:
    with fake_server(**VLLM) as server, chat_engine(server, concurrency=None) as engine:
        found = {f.name: f.status for f in engine.engine_checks(prompts(1)[0], TEXT)}
        assert found == {"server-obeys": "pass", "server-caches": "warn", "top-k": "pass"}
        assert engine.slots() >= 1


def test_the_regime_is_overlap() -> None:
    with fake_server(**VLLM) as server, chat_engine(server) as engine:
        found = engine.measure_regime(TEXT.cue)
    assert found.regime == "overlap"
    assert RegimeMeasure.from_dict(json.loads(json.dumps(found.to_dict()))) == found


# --- Serving --------------------------------------------------------------------------------------


def replied(server: FakeServer, **changes: Any) -> Reply:
    with chat_engine(server) as engine:
        policy = policy_of(engine, **({"entropy_source": "none"} | changes))
        asked = make_requests(["3+4"], policy)
        ((_, reply),) = engine.serve(
            asked, policy_plan(policy, at_server=True), policy, serving="overlap"
        )
    return reply


@pytest.mark.parametrize("settings", [VLLM, DEEPSEEK], ids=str)
def test_it_stops_where_the_policy_says(settings: dict[str, Any]) -> None:
    with fake_server(**settings, waits_at=12) as server:
        reply = replied(server)
        assert server.client_left.wait(30), "the stream is broken off"
    assert (reply.finish, reply.stopped_at, reply.budget) == ("stopped", 1, 4)
    assert (reply.text, reply.n_probes, reply.probe_tokens) == (" 5", 2, 2 * FORCED)


def test_a_trace_that_ends_by_itself() -> None:
    with fake_server(**VLLM) as server:
        reply = replied(server, **NEVER)
    assert (reply.finish, reply.text, reply.n_probes) == ("stop", "Final answer: 7", 4)
    assert reply.thinking == Story().thinking


@pytest.mark.parametrize("fault", BREAKS)
def test_a_stream_that_breaks_is_read_again_and_nothing_comes_twice(fault: str) -> None:
    with fake_server(**VLLM) as server, chat_engine(server) as engine:
        policy = policy_of(engine, entropy_source="none", budgets=[40], **NEVER)
        asked = make_requests(["3+4"], policy)
        plan = policy_plan(policy, at_server=True)
        server.faults = [fault] * 2
        ((_, reply),) = engine.serve(asked, plan, policy, serving="overlap")
    assert (reply.finish, reply.text) == ("stop", "Final answer: 7")
    assert reply.thinking == Story().thinking


class Fickle(FakeServer):
    """Thinks something else each time it is asked, and breaks off a while after its probes."""

    probes = 0
    """Forced answers that it gives before it breaks off."""
    given = 0

    def _chat(self, body: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        if body["messages"][-1]["role"] != "assistant":
            self.story = Story(thinking=f"{len(self.asked) % 10} + 4 = 7\nSo 7\nWait, 7\n")
        return super()._chat(body)

    def _complete(
        self, to: BaseHTTPRequestHandler, body: dict[str, Any], fault: str | None
    ) -> None:
        super()._complete(to, body, fault)
        self.given += body["messages"][-1]["role"] == "assistant"

    def _break(self, to: BaseHTTPRequestHandler, fault: str) -> None:
        until = time.monotonic() + 30
        while self.given < self.probes and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.5)
        super()._break(to, fault)


def test_a_question_begins_anew_where_the_server_thinks_something_else() -> None:
    server = Fickle(**VLLM)
    server.start()
    try:
        with chat_engine(server) as engine:
            policy = policy_of(engine, entropy_source="none", budgets=[40], **NEVER)
            asked = make_requests(["3+4"], policy)
            plan = policy_plan(policy, at_server=True)
            server.faults = ["cut-short"]
            ((_, reply),) = engine.serve(asked, plan, policy, serving="overlap")
            assert reply.thinking == server.story.thinking
            server.faults = ["cut-short", ""] * 20
            with pytest.raises(EngineError, match="broke off"):
                list(engine.serve(asked, plan, policy, serving="overlap"))
    finally:
        server.stop()


def test_what_was_asked_in_vain_counts() -> None:
    server = Fickle(**VLLM)
    server.start()
    try:
        with chat_engine(server) as engine:
            policy = policy_of(engine, entropy_source="none", budgets=[0, 40], **NEVER)
            asked = make_requests(["3+4"], policy)
            plan = policy_plan(policy, at_server=True)
            server.faults = ["cut-short"]
            server.probes = server.given + 1
            began = time.perf_counter()
            ((_, reply),) = engine.serve(asked, plan, policy, serving="overlap")
            spent = time.perf_counter() - began
    finally:
        server.stop()
    thought = len(ids_of(server.story.thinking))
    assert (reply.n_probes, reply.probe_tokens) == (2, 2 * FORCED)
    assert thought < reply.think_tokens <= thought + 3, "what came before the stream broke off"
    assert 0.5 < reply.seconds <= spent


def test_a_stream_that_goes_on_breaking_ends_the_call() -> None:
    with fake_server(**VLLM) as server, chat_engine(server) as engine:
        policy = policy_of(engine, entropy_source="none", budgets=[40], **NEVER)
        asked = make_requests(["3+4"], policy)
        server.always = "cut-short"
        with pytest.raises(EngineError, match="stream breaks off 6 times"):
            list(engine.serve(asked, engine.policy_plan(policy), policy, serving="overlap"))


def test_thinking_cannot_be_resumed_there() -> None:
    with fake_server(**VLLM) as server, chat_engine(server) as engine:
        policy = policy_of(engine, entropy_source="none", serving="prefix-cache")
        served = engine.served_model
        assert engine.call(choose_thinking_mode, served, policy, None, []) == "overlap"
        with pytest.raises(ModelError, match="cannot resume thinking"):
            engine.call(choose_thinking_mode, served, policy, "resume", [])


def test_run_serves_through_a_chat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.dumps({"question": f"{i}+4", "gold": "5"}) for i in range(4)]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with fake_server(**DEEPSEEK) as server:
        with chat_engine(server) as engine:
            save_policy(policy_of(engine, entropy_source="none").content, tmp_path / "p.joblib")
        files = (str(tmp_path / "p.joblib"), str(tmp_path / "sums.jsonl"))
        to = ("--engine", "openai", "--base-url", server.url, "--concurrency", "2")
        out = ("--out", str(tmp_path / "a.jsonl"))
        code = main(["run", *files, *out, *to, "--json", "--quiet", "--compare-full"])
    text = capsys.readouterr()
    assert code == 0, text
    document = json.loads(text.out)
    assert (document["serving"], document["stopped"]) == ("overlap", 4)


# --- Reading --------------------------------------------------------------------------------------


def test_an_end_goes_by_the_names_of_completions() -> None:
    def read(reason: str) -> str | None:
        reader = ChatReader(lambda reasoning, text: True)
        reader.read({"choices": [{"delta": {}, "finish_reason": reason}]})
        return reader.finish

    assert read("eos_token") == "stop"
    with pytest.raises(Unfinished, match="content_filter"):
        read("content_filter")
    with pytest.raises(ValueError, match="abort"):
        read("abort")


# --- Cutting --------------------------------------------------------------------------------------


@given(st.text(alphabet="a7 \n+é東", max_size=120), st.lists(st.integers(1, 9), max_size=40))
def test_text_is_cut_the_same_however_it_arrives(text: str, sizes: list[int]) -> None:
    def cut(pieces: list[str]) -> list[str]:
        words: list[str] = []

        def encode(word: str) -> list[int]:
            words.append(word)
            return list(word.encode())

        cutter = Cutter(encode)
        ids = [i for piece in pieces for i in cutter.feed(piece)] + cutter.finish()
        assert bytes(ids).decode() == text
        return words

    pieces, at = [], 0
    for size in sizes:
        pieces.append(text[at : at + size])
        at += size
    assert cut([*pieces, text[at:]]) == cut([text])


def test_words_are_cut_as_the_whole_text_is() -> None:
    text = Story().thinking
    cutter = Cutter(words().encode)
    assert [*cutter.feed(text), *cutter.finish()] == words().encode(text)
