"""Streaming a request's thinking and answer over HTTP, also when the server fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from stopadvisor.engines.http.client import Client, StreamTimeouts, Unreachable
from stopadvisor.engines.openai.early_exit import bind_policy
from stopadvisor.engines.openai.served_model import open_client
from stopadvisor.policy.frozen import Policy
from stopadvisor.policy.requests import Reply, make_requests
from tests.engines.fake_server import BREAKS, FAULTS, FakeServer, Story, fake_server, ids_of, words
from tests.engines.test_openai_online import LENGTH, NEVER, THINKING, bound_at, one, policy_at

ANSWER = ids_of(Story().visible)


@dataclass
class Watcher:
    """An observer that records its calls."""

    shows: bool = True
    thinking: list[int] = field(default_factory=list)
    said: list[int] = field(default_factory=list)
    pieces: int = 0
    failures: list[Exception] = field(default_factory=list)
    probes: int = 0
    stopped: list[int] = field(default_factory=list)

    def reasoning(self, ids: Sequence[int]) -> None:
        assert not self.said, "thinking comes before the answer"
        self.thinking += ids
        self.pieces += 1

    def content(self, ids: Sequence[int]) -> None:
        self.said += ids

    def probed(self, seconds: float, failed: Exception | None) -> None:
        assert seconds >= 0
        self.probes += failed is None
        self.failures += [] if failed is None else [failed]


def watched(
    server: FakeServer,
    policy: Policy,
    *,
    watcher: Watcher | None = None,
    client: dict[str, Any] | None = None,
    faults: Sequence[str] = (),
    **service: Any,
) -> tuple[Reply, Watcher]:
    """Answer one question with an observer."""
    watcher = watcher or Watcher()

    async def work() -> Reply:
        options = {"retry_timeout": 0.0, **(client or {})}
        served = await open_client(Client([server.url], "tiny-reasoner", **options))
        try:
            bound = replace(bind_policy(policy, served), **service)
            server.asked.clear()
            server.faults = list(faults)
            (request,) = make_requests(["3+4"], policy)
            found = await bound.live(request, observer=watcher).answer()
            watcher.stopped = [stop.position for stop in (found.stop or found.shadow,) if stop]
            return bound.reply(request.task, found)
        finally:
            await served.client.aclose()

    return asyncio.run(work()), watcher


@pytest.mark.parametrize("sends_end", [True, False])
@pytest.mark.parametrize(
    "changes",
    [{}, NEVER, {"on_stop": "answer"}, {"max_think": 10, "budgets": [0, 8], **NEVER}],
    ids=["stops", "never", "visible", "cut"],
)
def test_what_is_shown_is_what_is_replied(changes: dict[str, Any], sends_end: bool) -> None:
    with fake_server(pace=0.001, sends_end=sends_end) as server:
        policy = policy_at(server, **changes)
        reply, seen = watched(server, policy)
        plain = one(server, policy=policy)
    assert replace(reply, seconds=0.0) == replace(plain, seconds=0.0)
    length = LENGTH if reply.budget is None else reply.budget
    assert seen.thinking == THINKING[: min(length, policy.terms.max_think or 0)]
    assert words().decode(seen.thinking) == reply.thinking
    writes = reply.finish == "stop" or policy.on_stop == "answer"
    assert seen.said == (ANSWER if writes else [])
    assert seen.stopped == ([] if reply.budget is None else [reply.budget])
    assert seen.probes == reply.n_probes
    if reply.finish == "stop":
        assert seen.pieces > 1, "in pieces, as it came; how many is a matter of time"


@pytest.mark.usefixtures("pauses")
@pytest.mark.parametrize("fault", [*BREAKS, *(f for f in FAULTS if f != "hang")])
def test_a_stream_that_breaks_is_gone_on_with(fault: str) -> None:
    with fake_server() as server:
        policy = policy_at(server, budgets=[40], **NEVER)
        calm, _ = watched(server, policy)
        reply, seen = watched(server, policy, client={"retry_timeout": 5.0}, faults=[fault] * 2)
        streams = server.asked
    assert replace(reply, seconds=0.0) == replace(calm, seconds=0.0)
    assert (seen.thinking, seen.said) == (THINKING, ANSWER)
    begun = [len(body["prompt"]) - len(streams[0]["prompt"]) for body in streams]
    assert begun[:3] == ([0, 3, 6] if fault in BREAKS else [0, 0, 0])
    assert len({body["max_tokens"] + at for body, at in zip(streams, begun, strict=True)}) == 1


class BadProbes(FakeServer):
    """Fails on forced answers, whose requests are not streamed."""

    fault = "500"

    def _complete(self, to: Any, body: dict[str, Any], fault: str | None) -> None:
        asks = "messages" not in body and not body.get("stream") and 4 < body["max_tokens"] <= 16
        super()._complete(to, body, self.fault if asks else fault)


@pytest.mark.parametrize("fault", ["500", "truncated", "hang"])
def test_a_probe_that_fails_means_think_on(fault: str) -> None:
    server = BadProbes()
    server.fault = fault
    with server:
        policy = policy_at(server)
        reply, seen = watched(server, policy, probe_timeout=0.3)
        assert (reply.finish, reply.text, reply.n_probes) == ("stop", Story().visible, 0)
        assert (seen.thinking, seen.said, len(seen.failures)) == (THINKING, ANSWER, 1)
        if fault == "500":
            with pytest.raises(Unreachable):
                watched(server, policy)


@pytest.mark.parametrize("silent", ["between", "first"])
def test_a_server_that_falls_silent_is_not_waited_for(silent: str) -> None:
    """A broken stream is resumed once; a server that then sends nothing counts as down."""
    with fake_server(pace=0.01) as server:
        policy = policy_at(server, **NEVER)

        class Slow(Watcher):
            """Makes the server fall silent, within a stream or before the next one."""

            def reasoning(self, ids: Sequence[int]) -> None:
                super().reasoning(ids)
                server.delay = 1.0
                server.pace = 1.0 if silent == "between" else 0.0

        limits = {"stream_timeouts": StreamTimeouts(first=0.2, between=0.2)}
        with pytest.raises(Unreachable):
            watched(server, policy, watcher=Slow(), client=limits, probe_timeout=0.1)


def test_a_call_that_is_cancelled_ends_its_stream() -> None:
    with fake_server() as server:
        policy = policy_at(server, budgets=[40], **NEVER)

        async def ask() -> None:
            async with bound_at(server, policy) as service:
                server.waits_at = 10
                server.forget()
                (request,) = make_requests(["3+4"], policy)
                live = service.live(request, observer=Watcher())
                asked = asyncio.create_task(live.answer())
                while 10 not in server.streamed:
                    assert not asked.done()
                    await asyncio.sleep(0.01)
                asked.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asked

        asyncio.run(asyncio.wait_for(ask(), 60))
        assert server.client_left.wait(30)
