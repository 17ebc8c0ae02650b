"""A tokenizer that only the server has, and what is found out about it there."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.engines.http.client import Client
from stopadvisor.engines.openai import load_engine, open_model
from stopadvisor.engines.openai.engine import OpenAiEngine
from stopadvisor.engines.openai.server_tokenizer import ServerTokenizer, aside
from stopadvisor.engines.tokenizer import LocalTokenizer
from stopadvisor.errors import EngineError, ModelError
from stopadvisor.policy.source import AS_SERVED
from tests.engines.fake_server import FakeServer, end_id, fake_server, ids_of, words
from tests.engines.test_openai_engine import PLAN, engine_at, prompts
from tests.engines.test_openai_load import probe_without

TAGS = "<|im_start|>a<|im_end|><think>b</think>"


def words_at(server: FakeServer, patience: float) -> ServerTokenizer:
    client = Client([server.url], "tiny-reasoner", patience=patience)
    return asyncio.run(ServerTokenizer.open(client, "for a test"))


@contextmanager
def opened(**settings: Any) -> Iterator[tuple[ServerTokenizer, FakeServer]]:
    """Words of a fake server."""
    with fake_server(**settings) as server:
        found = words_at(server, patience=2.0)
        try:
            yield found, server
        finally:
            found.close()


def wait_until(true: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def asked(engine: OpenAiEngine) -> ServerTokenizer:
    assert isinstance(engine.chat.words, ServerTokenizer)
    return engine.chat.words


@pytest.mark.parametrize("way", [{}, {"returns_ids": False}, {"takes_ids": False}], ids=str)
def test_traces_are_those_of_the_same_tokenizer_here(way: dict[str, Any]) -> None:
    plan = PLAN if not way else replace(PLAN, entropy="none")
    with (
        fake_server(**way) as server,
        engine_at(server) as here,
        engine_at(server, tokenizer="server") as there,
    ):
        assert there.probe(prompts(3), plan) == here.probe(prompts(3), plan)
        ours, theirs = here.identity(), there.identity()
    for name in ("think_open", "think_close", "stop_ids", "model", "engine"):
        assert theirs[name] == ours[name], name


def test_it_answers_as_the_tokenizer_does() -> None:
    ours = words().words
    talk = [{"role": "user", "content": "<think>?"}]
    with opened() as (theirs, _):
        assert theirs.encode(TAGS) == ours.encode(TAGS)
        assert theirs.decode(ids_of(TAGS), special=True) == TAGS
        assert theirs.decode(ids_of(TAGS), special=False) == "a<think>b</think>"
        assert theirs.decode([], special=False) == ""
        assert theirs.prompt(talk, {}) == ours.prompt(talk, {})
        off = {"enable_thinking": False}
        assert theirs.prompt(talk, off) == ours.prompt(talk, off)
        assert theirs.render(talk, off, generation=False) == ours.render(
            talk, off, generation=False
        )
        assert [theirs.has_token(t) for t in ("<think>", "<thick>")] == [True, False]
        assert "</think>" in theirs.written


@pytest.mark.parametrize(
    ("settings", "remark"),
    [
        ({}, "answers end at <|im_end|> (2), where the server was seen to stop"),
        ({"returns_ids": False}, "answers end at <|im_end|> (2), where the server was seen"),
        ({"obeys_allowed": False}, "<|im_end|> (2), as the template writes it; not confirmed"),
        (
            {"obeys_allowed": False, "returns_ids": False},
            "<|im_end|> (2), as the template writes it; not confirmed",
        ),
    ],
    ids=str,
)
def test_what_ends_an_answer_is_tried_out(settings: dict[str, Any], remark: str) -> None:
    with opened(**settings) as (found, _):
        assert found.stop_ids == (end_id(),)
        assert remark in found.remarks[1]
        # Where nothing can be tried, tags are special, those of thinking excepted.
        assert found.decode(ids_of(TAGS), special=False) == "a<think>b</think>"


def test_hashes_are_over_what_is_shown() -> None:
    def hashes(**settings: Any) -> tuple[str, str]:
        with opened(**settings) as (found, _):
            return found.tokenizer_sha256(), found.template_sha256()

    first = hashes()
    assert all(text.startswith(AS_SERVED) for text in first)
    assert hashes() == first
    dated = hashes(writes="Today is 2026-11-21.\n")
    assert dated[0] == first[0]
    assert dated[1] != first[1]
    assert hashes(writes="Today is 1999-01-01.\n") == dated


def test_servers_that_cut_differently_are_refused() -> None:
    with (
        fake_server() as one,
        fake_server(writes="Be brief. ") as other,
        pytest.raises(ModelError, match="all --base-url must be equal servers"),
    ):
        load_engine("tiny-reasoner", [one.url, other.url], tokenizer="server")


def test_it_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with (
        fake_server(root="/nowhere/x") as server,
        engine_at(server) as engine,
    ):
        asked(engine)
        assert "of the server ('tiny-reasoner' gives no tokenizer here)" in engine.remarks[1]
        assert engine.identity()["generation_config"] is None


def test_a_folder_that_is_named_is_not_replaced_by_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with fake_server() as server, pytest.raises(ModelError, match="neither a local folder"):
        load_engine("tiny-reasoner", [server.url], tokenizer="nobody/nothing")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokenizes": False}, "has no /tokenize and /detokenize"),
        ({"cut_faults": [400] * 99}, "has no /tokenize and /detokenize"),
        ({"cut_faults": [503] * 99}, "does not show its tokenizer: no answer"),
        ({"cut_faults": [401] * 99}, "does not accept a request without a key"),
    ],
    ids=str,
)
def test_a_server_that_shows_none_is_named(
    settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stopadvisor.engines.openai.server_tokenizer.OPENING_PATIENCE", 0.2)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with fake_server(**settings) as server, pytest.raises(ModelError) as caught:
        load_engine("tiny-reasoner", [server.url], tokenizer="server")
    assert message in str(caught.value)


def test_the_key_goes_along_and_failures_are_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    with (
        fake_server(key="secret-key", echoes_key=True) as server,
        engine_at(server, tokenizer="server") as engine,
    ):
        server.cut_faults[:] = [503, 500]
        (trace,) = engine.probe(prompts(1), PLAN)
        assert trace.natural_text == "Final answer: 7"
        assert not server.cut_faults
        assert "secret-key" not in repr(engine) + " ".join(engine.remarks)


def test_what_was_asked_is_not_asked_again() -> None:
    with fake_server() as server, engine_at(server, tokenizer="server") as engine:
        engine.probe(prompts(1), PLAN)
        server.cut.clear()
        engine.probe(prompts(1), PLAN)
        assert server.cut == []
        engine.probe(prompts(2)[1:], PLAN)
        # Two renderings; the trace and its answers are those of the first.
        assert len(server.cut) == 2


@pytest.mark.parametrize(
    ("changes", "sent"),
    [
        ({"greedy": True}, {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}),
        ({"greedy": False}, {}),
        ({"greedy": False, "temperature": 0.7}, {"temperature": 0.7}),
    ],
    ids=str,
)
def test_sampling_that_nothing_says_is_left_to_the_server(
    changes: dict[str, Any], sent: dict[str, float]
) -> None:
    with fake_server() as server, engine_at(server, tokenizer="server") as engine:
        engine.probe(prompts(1), replace(PLAN, **changes))
        body = server.asked[0]
    names = ("temperature", "top_p", "top_k", "min_p")
    assert {name: body[name] for name in names if name in body} == sent
    assert ("seed" in body) == (not changes["greedy"])


def test_the_event_loop_goes_on_while_a_server_is_asked() -> None:
    class Far(LocalTokenizer):
        local = False

    async def ticks() -> int:
        work = asyncio.ensure_future(aside(Far(None), time.sleep, 0.3))
        count = 0
        while not work.done():
            await asyncio.sleep(0.01)
            count += 1
        return count

    assert asyncio.run(ticks()) > 5


def test_it_can_be_asked_within_the_event_loop_and_closed_there() -> None:
    async def ask(url: str) -> list[int]:
        model = await open_model("tiny-reasoner", [url], tokenizer="server")
        try:
            return model.chat.prompt_ids([{"role": "user", "content": "3+4"}])
        finally:
            await model.aclose()

    with fake_server() as server:
        ids = asyncio.run(ask(server.url))
    assert ids == words().prompt_ids([{"role": "user", "content": "3+4"}])


def test_who_gives_up_waiting_is_not_held() -> None:
    async def give_up(found: ServerTokenizer) -> None:
        await asyncio.wait_for(aside(found, found.encode, "new"), 0.2)

    with fake_server() as server:
        found = words_at(server, patience=60.0)
        server.cut_faults[:] = [503] * 999
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            asyncio.run(give_up(found))
        found.close()
    assert time.monotonic() - began < 20


def test_nobody_waits_for_words_that_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_server() as server:
        found = words_at(server, patience=60.0)
        server.cut_delay = 5.0
        closing = threading.Event()
        close = found._client.aclose

        async def slowly() -> None:
            closing.set()
            await asyncio.sleep(0.3)
            await close()

        monkeypatch.setattr(found._client, "aclose", slowly)
        errors: dict[str, str] = {}

        def ask(text: str) -> None:
            try:
                found.encode(text)
            except EngineError as error:
                errors[text] = str(error)

        def start(work: Callable[..., None], *arguments: str) -> None:
            # A daemon, so that one that waits for ever holds up nothing but its test.
            threading.Thread(target=work, args=arguments, daemon=True).start()

        start(ask, "before")
        wait_until(lambda: server.cut[-1].get("prompt") == "before")
        start(found.close)
        assert closing.wait(5)
        start(ask, "within")
        wait_until(lambda: not found._thread.is_alive())
        start(ask, "behind")
        wait_until(lambda: len(errors) == 3)
        assert all("the engine is closed" in error for error in errors.values())
        found.close()


def test_ctrl_c_ends_a_process_that_waits_for_the_servers_tokenizer(tmp_path: Path) -> None:
    sums = tmp_path / "sums.jsonl"
    lines = [json.dumps({"question": f"{i}+4", "gold": str(i + 4)}) for i in range(100)]
    sums.write_text("\n".join(lines), encoding="utf-8")
    with fake_server(cut_delay=60.0) as server:
        to = ["--engine", "openai", "--base-url", server.url, "--tokenizer", "server"]
        more = ["--model", "tiny-reasoner", "--out", str(tmp_path / "out")]
        command = [sys.executable, "-m", "stopadvisor", "probe", str(sums), *more, *to]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            wait_until(lambda: bool(server.cut) or process.poll() is not None, 60)
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            try:
                _, err = process.communicate(timeout=30)
            finally:
                process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda found: found.encode("new"), "returns no token ids but"),
        (lambda found: found.decode([5, 6], special=True), "returns no text but"),
    ],
    ids=["tokenize", "detokenize"],
)
def test_answers_that_are_none_are_refused(
    ask: Callable[[ServerTokenizer], Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened() as (found, _):
        monkeypatch.setattr(found, "_post", lambda path, **fields: {"else": 1})
        with pytest.raises(EngineError, match=message):
            ask(found)


@pytest.mark.integration
def test_it_runs_without_transformers() -> None:
    probe_without("torch", "transformers", tokenizer="server")
