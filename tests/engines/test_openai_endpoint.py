"""What endpoints can do is found out by asking; whom nothing can be asked of is refused by name."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar

import pytest

from stopadvisor.engines.http.client import Client, Unreachable
from stopadvisor.engines.openai import open_servers
from stopadvisor.engines.openai.endpoint import Endpoint, find_endpoint
from stopadvisor.ground.errors import ModelError
from tests.engines.conftest import Pauses
from tests.engines.fake_server import TINY, FakeServer, _send, fake_server


def found(*servers: FakeServer, model: str = "tiny-reasoner", **options: Any) -> Endpoint:
    return found_at(*(server.url for server in servers), model=model, **options)


def found_at(
    *urls: str, model: str = "tiny-reasoner", retry_timeout: float = 1.0, **options: Any
) -> Endpoint:
    async def main() -> Endpoint:
        async with Client(urls, model, retry_timeout=retry_timeout, **options) as client:
            return await find_endpoint(client)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"refuses": lambda body: 400}, "completions on token ids: http"),
        ({"refuses": lambda body: 501}, "completions on token ids: http"),
        ({"refuses": lambda body: 404}, "completions on token ids: http"),
        ({"returns_ids": False}, "completions return text alone, no token ids"),
    ],
    ids=["takes text", "takes none", "nothing", "returns text"],
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
    with fake_server(refuses=lambda body: 400 * ("logprobs" in body)) as server:
        endpoint = found(server)
    assert endpoint.top_limit == 0


def test_an_account_without_credit_is_no_hidden_reasoning() -> None:
    with fake_server(refuses=lambda body: 402) as server, pytest.raises(ModelError, match="402"):
        found(server)


def test_another_model_under_the_same_name_is_refused() -> None:
    with (
        fake_server(root="/models/one") as first,
        fake_server(root="/models/other") as second,
        fake_server(root="/elsewhere/one") as third,
        fake_server(root="someone/one") as fourth,
    ):
        assert found(first, third).root == found(first, fourth).root == "/models/one"
        with pytest.raises(ModelError, match="must be equal servers: root is '/models/other' at"):
            found(first, second)


def test_a_whole_server_is_described() -> None:
    with fake_server() as server:
        endpoint = found(server)
    assert (endpoint.server, endpoint.context, endpoint.root) == ("0.0.1", 1024, str(TINY))
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
    with Ended() as server:
        assert found(server).top_limit == 0


def test_what_a_server_does_not_say_is_not_assumed() -> None:
    with fake_server(counts_cached=False, context=None) as server:
        endpoint = found(server)
    assert endpoint.cached_tokens is None
    assert endpoint.context is None


@pytest.mark.parametrize("model", ["tiny-reasoner", str(TINY)])
def test_a_model_goes_by_its_name_or_its_folder(model: str) -> None:
    with fake_server(model="tiny-reasoner") as server:
        assert found(server, model=model).top_limit == 20
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


class Failing(FakeServer):
    """Is down, or busy, where `fails` says so of a path and a request."""

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
@pytest.mark.parametrize("how", [500, 503])
def test_a_server_that_fails_at_opening_is_not_called_unable(at: str, how: int) -> None:
    with failing(OPENS[at], how) as server, pytest.raises(Unreachable) as caught:
        found(server)
    said = str(caught.value)
    assert f"no answer for 1 s from {server.url}: {how} " in said
    assert "\n" not in said
    assert (caught.value.exit_code, ModelError.exit_code) == (1, 2)


def test_a_server_that_is_silent_at_opening_is_not_called_unable() -> None:
    with (
        failing(OPENS["completions"], 0) as server,
        pytest.raises(Unreachable, match="no answer within --request-timeout"),
    ):
        found(server, request_timeout=0.3)


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
    """Also where several of the opening's requests have to wait."""
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


class NamesAlone(FakeServer):
    """Names token ids beside log-probabilities, and nowhere else."""

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        data = super()._answer(body)
        del data["choices"][0]["token_ids"]
        return data


def test_ids_that_come_beside_log_probabilities_alone_are_refused_at_opening() -> None:
    with NamesAlone() as server:
        with pytest.raises(ModelError, match="completions return text alone, no token ids") as told:
            open_servers("tiny-reasoner", [server.url], retry_timeout=1.0)
        assert "\n" not in str(told.value)


class Listing(FakeServer):
    """Says what a test wants about its model."""

    entry: ClassVar[dict[str, Any]] = {}

    def get(self, to: BaseHTTPRequestHandler) -> None:
        if to.path == "/v1/models":
            entry = {"id": self.model, "root": None, "max_model_len": 1024}
            _send(to, 200, {"data": [entry | self.entry]})
        else:
            super().get(to)


def listed(**entry: Any) -> Endpoint:
    server = Listing()
    server.entry = entry  # type: ignore[misc]
    with server:
        return found(server)


@pytest.mark.parametrize("context", [-5, "many", 1e300, 10**40, [1], True])
def test_a_context_that_is_no_count_is_refused(context: Any) -> None:
    with pytest.raises(ModelError, match="/models: max_model_len must be a count, got"):
        listed(max_model_len=context)


@pytest.mark.parametrize("root", ["a\0b", "x" * 5000, "a\nb", 7, ["m"]])
def test_a_root_that_is_no_name_is_none(root: Any) -> None:
    assert listed(root=root).root is None


@pytest.mark.parametrize("name", [None, 7, "x" * 5000, ["tiny-reasoner"]])
def test_a_model_without_a_name_is_not_taken(name: Any) -> None:
    with pytest.raises(ModelError, match="does not serve the model 'tiny-reasoner'; it serves"):
        listed(id=name, root="tiny-reasoner")


def test_a_base_url_without_v1_is_named() -> None:
    with (
        fake_server() as server,
        pytest.raises(ModelError, match="has no /models: is it the base URL, ending in /v1"),
    ):
        found_at(server.url.removesuffix("/v1"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
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
        open_servers("tiny-reasoner", [server.url], retry_timeout=1.0)
    assert message in str(caught.value)


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
(trace,) = engine.probe([Prompt("k", ({"role": "user", "content": "3+4"},))], plan)
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
