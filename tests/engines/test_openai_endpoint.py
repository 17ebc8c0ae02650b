"""Discovering an endpoint's capabilities, and refusing endpoints that cannot be used."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from stopadvisor.engines.http.client import Client, Unreachable
from stopadvisor.engines.openai import open_servers
from stopadvisor.engines.openai.endpoint import Endpoint, find_endpoint
from stopadvisor.ground.errors import ModelError
from tests.engines.conftest import Pauses
from tests.engines.fake_server import TINY, FakeServer, fake_server


def found(*servers: FakeServer, model: str = "tiny-reasoner", **options: Any) -> Endpoint:
    return found_at(*(server.url for server in servers), model=model, **options)


def found_at(
    *urls: str, model: str = "tiny-reasoner", retry_timeout: float = 1.0, **options: Any
) -> Endpoint:
    async def main() -> Endpoint:
        async with Client(urls, model, retry_timeout=retry_timeout, **options) as client:
            return await find_endpoint(client)

    return asyncio.run(main())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "takes text": ({"refuses": lambda body: 400}, "probed (completions on token ids: http"),
    "takes none": ({"refuses": lambda body: 501}, "probed (completions on token ids: http"),
    "returns text": ({"returns_ids": False}, "probed (completions return only text, no token ids)"),
    "no credit": ({"refuses": lambda body: 402}, "refuses the request: 402"),
    "no key": ({"key": "k"}, "does not accept a request without a key (401 unauthorized)"),
    "another model": ({"model": "x"}, "not serve the model 'tiny-reasoner'; it serves 'x'"),
    **{
        f"context {context!r:.9}": ({"context": context}, "/models: max_model_len must be a count")
        for context in (-5, "many", 1e300, 10**40, [1], True)
    },
    **{
        f"name {name!r:.9}": ({"model": name, "root": "tiny-reasoner"}, "it serves none")
        for name in (None, 7, "x" * 5000, ["tiny-reasoner"])
    },
}


@pytest.mark.parametrize(("settings", "reason"), REFUSED.values(), ids=REFUSED)
def test_an_endpoint_that_cannot_be_used_is_refused_by_name(
    settings: dict[str, Any], reason: str
) -> None:
    with fake_server(**{"root": None} | settings) as server, pytest.raises(ModelError) as caught:
        found(server)
    said = str(caught.value)
    assert said.startswith(server.url)
    assert reason in said
    assert "\n" not in said
    if "probed" in reason:
        assert "use a server whose /v1/completions takes and returns token ids; with" in said
        assert "full budget and the provider's own effort setting" in said


def no_logprobs(body: dict[str, Any]) -> int:
    return 400 * ("logprobs" in body)


WHOLE = Endpoint(1024, str(TINY), "0.0.1", 20, 576, 600)
DESCRIBED: dict[str, tuple[dict[str, Any], Endpoint]] = {
    "whole": ({}, WHOLE),
    "silent": (
        {"counts_cached": False, "context": None},
        replace(WHOLE, cached_tokens=None, context=None, repeated_tokens=592),
    ),
    "no log-probabilities": ({"refuses": no_logprobs}, replace(WHOLE, top_limit=0)),
    **{
        f"top {limit}": ({"top_limit": limit}, replace(WHOLE, top_limit=limit))
        for limit in (0, 1, 5, 19, 21, 100, 1024)
    },
    **{
        f"root {root!r:.9}": ({"root": root}, replace(WHOLE, root=None))
        for root in ("a\0b", "x" * 5000, "a\nb", 7, ["m"])
    },
}


@pytest.mark.parametrize(("settings", "expected"), DESCRIBED.values(), ids=DESCRIBED)
def test_what_a_server_shows_is_found(settings: dict[str, Any], expected: Endpoint) -> None:
    with fake_server(**settings) as server:
        assert found(server) == expected


def test_servers_that_differ_are_refused() -> None:
    """In what they can do, or by another model under the same name."""
    with (
        fake_server(root="/models/one") as first,
        fake_server(root="/models/other") as second,
        fake_server(root="/elsewhere/one") as third,
        fake_server(root="someone/one") as fourth,
        fake_server(root="/models/one", top_limit=5) as fifth,
    ):
        assert found(first, third).root == found(first, fourth).root == "/models/one"
        with pytest.raises(ModelError, match="must be equal servers: root is '/models/other' at"):
            found(first, second)
        with pytest.raises(ModelError, match="must be equal servers: top_limit is 5 at"):
            found(first, fifth)


class Ended(FakeServer):
    """Ends every answer at once, without returning the ending token."""

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        data = super()._answer(body)
        nothing: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": []}
        ended = {"text": "", "token_ids": [], "logprobs": nothing, "finish_reason": "stop"}
        return data | {"choices": [ended]}


def test_answers_without_a_token_show_no_log_probabilities() -> None:
    with Ended() as server:
        assert found(server).top_limit == 0


@pytest.mark.parametrize("model", ["tiny-reasoner", str(TINY)])
def test_a_model_goes_by_its_name_or_its_folder(model: str) -> None:
    with fake_server(model="tiny-reasoner") as server:
        assert found(server, model=model).top_limit == 20
        assert {body["model"] for body in server.asked} == {"tiny-reasoner"}


class Failing(FakeServer):
    """Fails where `fails` says so of a path and a body."""

    fails: Callable[[str, dict[str, Any]], bool] = staticmethod(lambda path, body: False)
    how = 503

    def get(self, to: BaseHTTPRequestHandler) -> None:
        if self.fails(to.path, {}):
            to.send_error(self.how)
        else:
            super().get(to)

    def post(self, to: BaseHTTPRequestHandler) -> None:
        if to.path == "/tokenize" and self.fails(to.path, {}):
            to.send_error(self.how)
        else:
            super().post(to)

    def _complete(
        self, to: BaseHTTPRequestHandler, body: dict[str, Any], fault: str | None
    ) -> None:
        if not self.fails(to.path, body):
            super()._complete(to, body, fault)
        elif self.how:
            to.send_error(self.how)
        else:
            time.sleep(1.5)  # and then nothing
            to.close_connection = True


def failing(
    fails: Callable[[str, dict[str, Any]], bool], how: int = 503, **settings: Any
) -> Failing:
    server = Failing(**settings)
    server.fails, server.how = fails, how
    return server


OPENS: dict[str, Callable[[str, dict[str, Any]], bool]] = {
    "the list of models": lambda path, body: path == "/v1/models",
    "completions": lambda path, body: path == "/v1/completions",
    "log-probabilities": lambda path, body: "logprobs" in body,
    "its cache": lambda path, body: len(body.get("prompt", ())) > 99,
}


@pytest.mark.parametrize("at", OPENS)
def test_a_server_that_fails_at_opening_is_not_called_unable(at: str) -> None:
    with failing(OPENS[at]) as server, pytest.raises(Unreachable) as caught:
        found(server)
    said = str(caught.value)
    assert f"no answer for 1 s from {server.url}: 503 " in said
    assert "\n" not in said
    assert (caught.value.exit_code, ModelError.exit_code) == (1, 2)


def test_a_server_that_is_silent_at_opening_is_not_called_unable() -> None:
    with (
        failing(OPENS["completions"], 0) as server,
        pytest.raises(Unreachable, match="no answer within --request-timeout"),
    ):
        found(server, request_timeout=0.3)


@pytest.mark.usefixtures("pauses")
@pytest.mark.parametrize("at", OPENS)
def test_a_server_that_comes_back_while_it_is_opened_lacks_nothing(at: str) -> None:
    with fake_server() as whole:
        expected = found(whole)
    down = iter(range(3))
    with failing(lambda *asked: OPENS[at](*asked) and next(down, None) is not None) as server:
        assert found(server, retry_timeout=20.0) == expected


@pytest.mark.parametrize("retry_timeout", [0.2, 2.0])
def test_patience_says_how_long_a_server_is_waited_for_at_opening(
    retry_timeout: float, pauses: Pauses
) -> None:
    server = FakeServer()
    server.start()
    server.stop()
    with pytest.raises(Unreachable, match=r"cannot reach the server: no answer .*from http://127"):
        found(server, retry_timeout=retry_timeout)
    assert sum(pauses.taken) == pytest.approx(retry_timeout)


@pytest.mark.parametrize(("down", "said"), [(3, 1), (0, 0)])
def test_who_waits_for_a_server_is_told_once(down: int, said: int, pauses: Pauses) -> None:
    """Also if several requests of the opening have to wait."""
    lines: list[str] = []
    failed: Counter[str] = Counter()

    def fails(path: str, body: dict[str, Any]) -> bool:
        failed[repr(body)] += path == "/v1/completions"
        return 0 < failed[repr(body)] <= down

    with failing(fails) as server:
        open_servers(
            "tiny-reasoner", [server.url], retry_timeout=20.0, on_wait=lines.append
        ).close()
    assert len(lines) == said
    assert len(pauses.taken) == down * sum(times > 0 for times in failed.values())
    for line in lines:
        assert line.startswith("waiting for a server, for 20 s at most (--patience): http://127")
        assert "503" in line


def test_an_answer_that_cannot_be_read_at_opening_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch, pauses: Pauses
) -> None:
    monkeypatch.setattr("stopadvisor.engines.http.client.OPENING_TIMEOUT", 0.3)
    with (
        fake_server(always="no-choices") as server,
        pytest.raises(ModelError, match="cannot be probed"),
    ):
        found(server, retry_timeout=60.0)
    assert sum(pauses.taken) == pytest.approx(0.3)


def test_no_other_server_answers_for_one_that_is_opened() -> None:
    with (
        fake_server() as first,
        failing(OPENS["completions"]) as second,
        pytest.raises(Unreachable, match="503"),
    ):
        found(first, second)


def test_a_base_url_without_v1_is_named() -> None:
    with (
        fake_server() as server,
        pytest.raises(ModelError, match="has no /models: is it the base URL, ending in /v1"),
    ):
        found_at(server.url.removesuffix("/v1"))


@pytest.mark.parametrize("root", ["/nowhere/x", "reasoner:8b"])
def test_a_tokenizer_that_is_not_found_is_asked_for(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    said = "needed here: name its folder or its name on the Hub with --tokenizer"
    with fake_server(root=root, tokenizes=False) as server, pytest.raises(ModelError, match=said):
        open_servers("tiny-reasoner", [server.url], retry_timeout=1.0)


def test_a_folder_names_the_tokenizer_of_a_server_elsewhere() -> None:
    with fake_server(root="/nowhere/x") as server:
        engine = open_servers("tiny-reasoner", [server.url], tokenizer=str(TINY))
        identity = engine.identity()
        engine.close()
    # Nothing shows which weights a server elsewhere has loaded.
    assert identity["model_revision"] is None
    assert identity["model"] == "x"


# --- What it needs installed ---


PROBE = """
import importlib.util
import sys

real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: (
    None if name in sys.argv[2:] else real(name, package)
)
sys.modules.update(dict.fromkeys(sys.argv[2:]))  # importing them fails, as where they are missing

from stopadvisor.ground.constants import CUES
from stopadvisor.engines.openai import open_servers
from stopadvisor.probes.asking import ProbePlan, Prompt

engine = open_servers("tiny-reasoner", [sys.argv[1]], concurrency=2)
entropy = engine.capabilities.entropy
plan = ProbePlan(budgets=(0, 4), cue=CUES["terse"], max_think=100, entropy=entropy)
((_, trace),) = engine.probe_each([Prompt("k", ({"role": "user", "content": "3+4"},))], plan)
engine.close()
print([probe.text for probe in trace.probes])
"""


@pytest.mark.integration
def test_it_runs_without_torch_and_says_nothing_of_it() -> None:
    with fake_server() as server:
        words = [sys.executable, "-c", PROBE, server.url, "torch"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[' 5', ' 5']"
    assert done.stderr == ""


@pytest.mark.parametrize("package", ["httpx2", "anyio", "transformers"])
def test_a_missing_package_is_named_with_its_extra(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "stopadvisor.engines.errors.importlib.util.find_spec",
        lambda name: None if name == package else object(),
    )
    with pytest.raises(ModelError, match=f"needs {package}, which is not installed: pip install"):
        open_servers("tiny-reasoner", [FakeServer(port=9).url])


def test_a_tokenizer_that_the_server_does_not_show_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, pauses: Pauses
) -> None:
    monkeypatch.setattr("stopadvisor.engines.http.client.OPENING_TIMEOUT", 0.3)
    with failing(lambda path, body: path == "/tokenize") as server:
        open_servers("tiny-reasoner", [server.url], concurrency=1, retry_timeout=60).close()
    assert sum(pauses.taken) == pytest.approx(0.3)
