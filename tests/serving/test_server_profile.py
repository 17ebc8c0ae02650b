"""A server that is profiled: its costs come back, and what it does not say is not cheap."""

from __future__ import annotations

from typing import Any, cast

import pytest

from stopadvisor.engines.http.client import Client
from stopadvisor.ground.errors import CalibrationError, EngineError, ModelError
from stopadvisor.ground.progress import Progress
from stopadvisor.rules.serving_profile import ServingProfile
from stopadvisor.serving.server_profile import measure_server, profile_server
from tests.engines.fake_server import fake_server
from tests.serving.virtual_server import Costs, VirtualServer, run_virtually

BATCHES = (1, 8)


class Counted(Progress):
    """Keeps how much of how much is done, and what is said."""

    done = total = tokens = 0
    said = ""

    def begin(self, title: str, total: int, done: int = 0) -> None:
        self.total = total

    def advance(self, traces: int, tokens: int) -> None:
        self.done += traces
        self.tokens += tokens

    def remark(self, text: str) -> None:
        self.said += text


def profiled(server: VirtualServer) -> ServingProfile:
    """Profile a server whose time is made up."""
    client, progress = cast(Client, server), Counted()
    found = run_virtually(profile_server(client, BATCHES, progress, engine="vllm"))
    assert progress.done == progress.total > 0
    assert 0 < server.total - progress.tokens < 500, "without the first and the round trips"
    assert ("does not report cached tokens" in progress.said) != server.says_cached
    return found


def test_the_costs_of_a_server_come_back() -> None:
    costs = Costs()
    found = profiled(VirtualServer())
    assert found.misfit < 0.1
    assert found.per_request_seconds == pytest.approx(costs.request, rel=0.25)
    assert found.per_token_seconds.prefilled == pytest.approx(costs.prefilled, rel=0.1)
    assert found.per_token_seconds.cached < 0.2 * found.per_token_seconds.prefilled
    decoded = [row.seconds for row in found.decoded_by_batch]
    assert decoded == pytest.approx([costs.decoded(batch) for batch in BATCHES], rel=0.15)
    assert found.round_trip_seconds == pytest.approx(costs.request + costs.decoded(1), rel=0.1)
    assert (found.at_batch, found.weights.unit) == (8, "seconds")
    assert (found.engine, found.device) == ("vllm", "http://virtual/v1")


class _Cached(VirtualServer):
    """Has prompts in its cache before they are asked."""

    longest = 0

    async def ask(self, *asked: Any, **options: Any) -> dict[str, Any]:
        reply = await super().ask(*asked, **options)
        if "usage" in reply:
            prompt = reply["usage"]["prompt_tokens"]
            reply["usage"]["prompt_tokens_details"] = {"cached_tokens": prompt - 1}
            self.longest = max(self.longest, prompt)
        return reply


@pytest.mark.parametrize(("context", "most"), [(512, 256), (8192, 1024), (None, 1024)])
def test_prompts_fit_a_server_that_has_read_the_first_before(
    context: int | None, most: int
) -> None:
    """They take half of its context, and no more than 1024 tokens."""
    server = _Cached(context=context)
    with pytest.raises(CalibrationError):  # it says of nothing what reading it costs
        profiled(server)
    assert most / 2 < server.longest <= most


def test_what_a_server_does_not_say_is_not_cheap() -> None:
    found = profiled(VirtualServer(says_cached=False))
    assert found.per_token_seconds.cached == found.per_token_seconds.prefilled


def test_a_real_chat_is_measured_with_requests_that_no_policy_covers() -> None:
    with fake_server(judges=lambda text: "7", pace=0.001, key="secret-key-of-ours") as server:
        with pytest.raises(ModelError, match="without a key"):
            measure_server(server.url, server.model, BATCHES, Progress())
        server.key = None
        found = measure_server(server.url, server.model, (1,), Progress())
    assert (found.model, found.engine) == ("tiny-reasoner", "openai")
    assert found.per_token_seconds.decoded > 0
    assert {body["max_tokens"] for body in server.asked} == {1, 64}
    assert {body["temperature"] for body in server.asked} == {0}


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"model": "another"}, ModelError, "does not serve the model 'tiny-reasoner'"),
        ({"chat": None}, EngineError, "404"),
        ({"judges": lambda text: "7", "always": "500"}, EngineError, "500 broken"),
    ],
    ids=["another model", "no chat", "fails"],
)
def test_what_cannot_be_measured_is_said(
    settings: dict[str, object], kind: type[Exception], words: str
) -> None:
    with fake_server(**{"root": None, **settings}) as server, pytest.raises(kind, match=words):
        measure_server(server.url, "tiny-reasoner", BATCHES, Progress())


class _Uncounted(VirtualServer):
    async def ask(self, *asked: Any, **options: Any) -> dict[str, Any]:
        return {k: v for k, v in (await super().ask(*asked, **options)).items() if k != "usage"}


def test_a_server_has_to_count_its_tokens() -> None:
    with pytest.raises(ModelError, match="does not count its tokens"):
        profiled(_Uncounted())
