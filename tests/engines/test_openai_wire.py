"""Endpoints that take or give text in place of token ids are probed all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stopadvisor.engines.http.client import Client
from stopadvisor.engines.openai import load_engine
from stopadvisor.engines.openai.backend import TextBackend
from stopadvisor.engines.tokenizer import LocalTokenizer
from stopadvisor.errors import ModelError
from stopadvisor.probes.plan import RawProbe
from tests.engines.fake_server import Story, end_id, fake_server, ids_of, words
from tests.engines.test_openai_engine import PLAN, engine_at, probed, prompts

TEXT = replace(PLAN, entropy="none")
WAYS = [{"takes_ids": False}, {"returns_ids": False}]


def silent(probe: RawProbe) -> RawProbe:
    """Without what only log-probabilities tell."""
    return replace(probe, mean_logprob=0.0, mean_entropy=0.0, tail_mass=None)


@pytest.mark.parametrize("settings", WAYS, ids=str)
@pytest.mark.parametrize("on_stop", ["probe", "answer"])
def test_the_same_traces_and_answers_as_on_ids(settings: dict[str, Any], on_stop: Any) -> None:
    exact, by_text = (
        probed(replace(PLAN, on_stop=on_stop)),
        probed(replace(TEXT, on_stop=on_stop), **settings),
    )
    assert by_text == replace(exact, probes=tuple(silent(p) for p in exact.probes))


def test_prompts_go_as_text_where_ids_are_not_taken() -> None:
    with fake_server(takes_ids=False) as server, engine_at(server) as engine:
        assert engine.entropy == "none"
        engine.probe(prompts(2), TEXT)
    assert {type(body["prompt"]) for body in server.asked} == {str}
    assert all(body["prompt"].startswith("<|im_start|>user\n") for body in server.asked)
    unknown = {"return_token_ids", "stop_token_ids", "logprobs"}
    assert not any(unknown & set(body) for body in server.asked)


def test_ids_go_where_only_answers_are_text() -> None:
    with fake_server(returns_ids=False) as server, engine_at(server) as engine:
        assert engine.entropy == "none"  # no ids say whose the log-probabilities are
        engine.probe(prompts(1), TEXT)
    assert {type(body["prompt"]) for body in server.asked} == {list}


@pytest.mark.parametrize(
    ("forced", "text"),
    [("\n 7\n", "\n 7"), ("\n", "\n"), ("", ""), (" 7", " 7"), ("\n\n 7 8\n9", "\n\n 7 8")],
)
@pytest.mark.parametrize("settings", WAYS, ids=str)
def test_a_newline_before_content_ends_nothing(
    forced: str, text: str, settings: dict[str, Any]
) -> None:
    trace = probed(TEXT, story=Story(forced=lambda tokens: forced), **settings)
    assert {p.text for p in trace.probes} == {text}


def test_a_policy_from_text_is_told_from_one_on_ids() -> None:
    with (
        fake_server() as exact,
        fake_server(takes_ids=False) as by_text,
        engine_at(exact) as one,
        engine_at(by_text) as other,
    ):
        assert one.identity()["engine"] == "openai"
        assert other.identity()["engine"] == "openai-text"
        assert "as text, which is cut into tokens anew" in other.remarks[1]
        assert "resumes text; no log-probabilities" in other.remarks[0]


def test_what_the_server_puts_in_front_is_not_sent_twice() -> None:
    wire = TextBackend.of(Client(["http://127.0.0.1:9/v1"], "m"), words(), takes_ids=False)
    assert wire.begin == ""  # the tiny reasoner's tokenizer adds nothing

    class Adding:
        def __init__(self, tokenizer: Any) -> None:
            self.inner = tokenizer

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            begin = [end_id()] if add_special_tokens else []
            return [*begin, *self.inner.encode(text, add_special_tokens=False)]

    chat = replace(words(), words=LocalTokenizer(Adding(words().tokenizer)))
    wire = TextBackend.of(Client(["http://127.0.0.1:9/v1"], "m"), chat, takes_ids=False)
    assert wire.begin == "<|im_end|>"


def test_a_tokenizer_that_changes_joined_text_is_refused() -> None:
    class Spacing:
        name_or_path = "spacing"

        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return ids_of(text)

        def decode(self, ids: list[int], **options: Any) -> str:
            return " ".join(words().decode([i]) for i in ids)

    chat = replace(words(), words=LocalTokenizer(Spacing()))
    with pytest.raises(ModelError, match="cannot be continued in parts"):
        TextBackend.of(Client(["http://127.0.0.1:9/v1"], "m"), chat, takes_ids=False)


@pytest.mark.parametrize(
    ("settings", "status"), [({}, "pass"), ({"ignores_limits": True}, "fail")], ids=str
)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_preflight_tries_a_text_endpoint(
    way: dict[str, Any], settings: dict[str, Any], status: str
) -> None:
    with fake_server(**way, **settings) as server, engine_at(server) as engine:
        found = {f.name: f for f in engine.findings(prompts(1)[0], TEXT)}
    assert found["server-obeys"].status == status, found["server-obeys"].detail
    assert found["resumes"].status == "pass" or settings


def test_a_stop_text_that_is_not_obeyed_is_found() -> None:
    with fake_server(takes_ids=False, obeys_stop=False) as server, engine_at(server) as engine:
        found = {f.name: f for f in engine.findings(prompts(1)[0], TEXT)}
    assert "goes on behind stop=" in found["server-obeys"].detail


def test_log_probabilities_are_refused_by_name() -> None:
    with (
        fake_server(takes_ids=False) as server,
        engine_at(server) as engine,
        pytest.raises(ModelError, match="--entropy must be none"),
    ):
        engine.probe(prompts(1), PLAN)


def test_the_ramp_and_the_regime_work_on_text() -> None:
    with fake_server(takes_ids=False) as server:
        engine = load_engine("tiny-reasoner", [server.url], patience=2.0)
        try:
            engine.probe(prompts(1), TEXT)
            assert engine.concurrency is not None
        finally:
            engine.close()


def test_an_endpoint_that_knows_no_more_than_openais_own_is_probed() -> None:
    strict = probed(TEXT, takes_ids=False, strict=True)
    assert strict == probed(TEXT, takes_ids=False)


def test_a_text_that_is_not_gone_on_with_fails_preflight() -> None:
    settings = {"takes_ids": False, "wraps_text": True, "says_usage": False}
    with fake_server(**settings) as server, engine_at(server) as engine:
        assert engine.served_model.can.way == "completions-text"  # nothing counts its tokens
        found = {f.name: f for f in engine.findings(prompts(1)[0], TEXT)}
    assert found["resumes"].status == "fail"
