"""What endpoints can do is found out by asking; whom nothing can be asked of is refused by name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stopadvisor.engines.http.client import Client
from stopadvisor.engines.openai import endpoint, load_engine
from stopadvisor.engines.openai.endpoint import Endpoint, find_endpoint
from stopadvisor.errors import ModelError
from tests.engines.fake_server import TINY, FakeServer, fake_server


def found(*servers: FakeServer, model: str = "tiny-reasoner") -> Endpoint:
    return found_at(*(server.url for server in servers), model=model)


def found_at(*urls: str, model: str = "tiny-reasoner") -> Endpoint:
    async def main() -> Endpoint:
        async with Client(urls, model, retry_timeout=1.0) as client:
            return await find_endpoint(client)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "way"),
    [
        ({}, "completions"),
        ({"takes_ids": False, "chat": "reasoning"}, "visible-stream"),
        ({"returns_ids": False, "chat": "reasoning"}, "visible-stream"),
        ({"completions": False, "chat": "reasoning_content"}, "visible-stream"),
        ({"completions": False, "chat": "reasoning"}, "visible-stream"),
        ({"completions": False, "chat": "inline"}, "visible-stream"),
    ],
    ids=lambda value: str(value),
)
def test_the_way_to_its_reasoning_is_found(settings: dict[str, Any], way: str) -> None:
    with fake_server(**settings) as server:
        assert found(server).way == way


@pytest.mark.parametrize("status", [400, 404, 422, 500, 501])
def test_ids_that_fail_somehow_leave_the_chat(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # A failing server is asked again for so long, twice; how long is none of this test's business.
    monkeypatch.setattr(endpoint, "OPENING_TIMEOUT", 0.2)
    with fake_server(takes_ids=False, refuses_with=status, chat="reasoning") as server:
        assert found(server).way == "visible-stream"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"takes_ids": False}, "completions on token ids: http"),
        ({"returns_ids": False}, "completions return text alone, no token ids"),
        ({"completions": False}, "chat: http"),
        ({"completions": False, "chat": "content"}, "chat: no reasoning is shown"),
    ],
    ids=["takes text", "returns text", "nothing", "hidden reasoning"],
)
def test_an_endpoint_that_cannot_be_probed_is_told_what_is_needed(
    settings: dict[str, Any], reason: str
) -> None:
    with fake_server(**settings) as server, pytest.raises(ModelError) as caught:
        found(server)
    said = str(caught.value)
    assert said.startswith(f"{server.url} cannot be probed (")
    assert reason in said
    assert "needed is a server whose /v1/completions takes and returns token ids" in said
    assert "full budget and the provider's own effort setting" in said
    assert "\n" not in said


def test_log_probabilities_that_are_refused_leave_ids() -> None:
    with fake_server(strict_about=("logprobs",)) as server:
        endpoint = found(server)
    assert (endpoint.way, endpoint.top_limit) == ("completions", 0)


def test_an_account_without_credit_is_no_hidden_reasoning() -> None:
    with (
        fake_server(takes_ids=False, refuses_with=402) as server,
        pytest.raises(ModelError, match="402"),
    ):
        found(server)


def test_another_model_under_the_same_name_is_refused() -> None:
    with (
        fake_server(root="/models/one") as first,
        fake_server(root="/models/other") as second,
        fake_server(root="/elsewhere/one") as third,
        fake_server(root="someone/one") as fourth,
    ):
        assert found(first, third).way == "completions"
        assert found(first, fourth).way == "completions"
        with pytest.raises(ModelError, match="must be equal servers: root is '/models/other' at"):
            found(first, second)


def test_a_whole_server_is_described() -> None:
    with fake_server() as server:
        endpoint = found(server)
    assert (endpoint.server, endpoint.context, endpoint.root) == ("0.0.1", 1024, str(TINY))
    assert endpoint.counts_cached
    assert endpoint.cached_tokens == endpoint.repeated_tokens // 32 * 32


@pytest.mark.parametrize("limit", [0, 1, 5, 19, 20, 21, 100, 1024])
def test_the_most_log_probabilities_are_found(limit: int) -> None:
    with fake_server(top_limit=limit) as server:
        endpoint = found(server)
    assert endpoint.top_limit == limit


class Ended(FakeServer):
    """Ends every answer at once, and keeps the ending token to itself."""

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        data = super()._answer(body)
        nothing: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": []}
        ended = {"text": "", "token_ids": [], "logprobs": nothing, "finish_reason": "stop"}
        return data | {"choices": [ended]}


def test_answers_without_a_token_show_no_log_probabilities() -> None:
    server = Ended()
    server.start()
    try:
        assert found(server).top_limit == 0
    finally:
        server.stop()


def test_what_a_server_does_not_say_is_not_assumed() -> None:
    with fake_server(counts_cached=False, context=None) as server:
        endpoint = found(server)
    assert not endpoint.counts_cached
    assert endpoint.cached_tokens is None
    assert endpoint.context is None


@pytest.mark.parametrize("model", ["tiny-reasoner", str(TINY)])
def test_a_model_goes_by_its_name_or_its_folder(model: str) -> None:
    with fake_server(model="tiny-reasoner") as server:
        assert found(server, model=model).way == "completions"
        assert {body["model"] for body in server.asked} == {"tiny-reasoner"}


def test_another_model_is_refused_with_what_is_served() -> None:
    with (
        fake_server() as server,
        pytest.raises(ModelError, match=r"does not serve the model 'x'; it serves 'tiny-reasoner'"),
    ):
        found(server, model="x")


def test_servers_that_differ_are_refused() -> None:
    with (
        fake_server() as first,
        fake_server(top_limit=5) as second,
        pytest.raises(ModelError, match="must be equal servers: top_limit is 5 at"),
    ):
        found(first, second)


def test_a_server_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stopadvisor.engines.openai.endpoint.OPENING_TIMEOUT", 0.3)
    server = FakeServer()
    server.start()
    server.stop()
    with pytest.raises(ModelError, match="cannot reach the server: no answer from http://127"):
        found(server)


def test_a_base_url_without_v1_is_named() -> None:
    with (
        fake_server() as server,
        pytest.raises(ModelError, match="has no /models: is it the base URL, ending in /v1"),
    ):
        found_at(server.url.removesuffix("/v1"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"completions": False, "chat": "reasoning"}, "cannot resume it (visible-stream)"),
        ({"completions": False}, "cannot be probed (completions on token ids: "),
        ({"key": "k"}, "does not accept a request without a key (401 unauthorized)"),
        (
            {"root": "/nowhere/x", "tokenizes": False},
            "needed here: name its folder or its name on the Hub with --tokenizer",
        ),
    ],
    ids=lambda value: str(value),
)
def test_what_cannot_be_probed_is_refused_by_name(
    settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with fake_server(**settings) as server, pytest.raises(ModelError) as caught:
        load_engine("tiny-reasoner", [server.url], patience=1.0)
    assert message in str(caught.value)


def test_a_folder_names_the_tokenizer_of_a_server_elsewhere() -> None:
    with fake_server(root="/nowhere/x") as server:
        engine = load_engine("tiny-reasoner", [server.url], tokenizer=str(TINY))
        identity = engine.identity()
        engine.close()
    # Nothing shows which weights a server elsewhere has loaded.
    assert identity["model_revision"] is None
    assert identity["model"] == "x"
