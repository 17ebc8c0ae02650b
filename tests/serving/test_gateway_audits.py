"""The gateway's audits: what was stopped is thought to its end, and an alarm stops the stopping."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry as Registry

from stopadvisor.policy.frozen import load_policy
from stopadvisor.serving.audit_log import find_series, replay, reset
from stopadvisor.serving.audits import AuditedReply, Auditors, FullThinking
from stopadvisor.serving.gateway.policies import Bound
from stopadvisor.serving.gateway.server import serve
from stopadvisor.serving.metrics import Metrics
from stopadvisor.serving.serve_settings import AuditSettings
from tests.engines.fake_server import Story
from tests.engines.test_openai_online import LENGTH, VISIBLE
from tests.integration.server import free_port
from tests.serving.gateways import (
    OddServer,
    RunningGateway,
    chat_body,
    odd_server,
    running,
    save_changed,
    until,
)

STOP = 4
"""Thinking tokens before the stop."""


@pytest.fixture
def server() -> Iterator[OddServer]:
    with odd_server() as server:
        yield server


@pytest.fixture
def policy(policies: Path) -> Path:
    return policies / "stops.json"


def audit(folder: Path, **fields: Any) -> AuditSettings:
    return AuditSettings(**{"share": 1.0, "folder": folder, "at_once": 8, **fields})


def resolved(gateway: RunningGateway) -> int:
    (auditor,) = gateway.gateway.auditors._by_digest.values()
    return auditor.log.monitor.counts["resolved"]


def test_stopped_requests_are_audited_under_the_name_that_clients_see(
    server: OddServer, policy: Path, tmp_path: Path
) -> None:
    with running(policy, server, audit=audit(tmp_path / "audits")) as gateway:
        replies = [gateway.ask(chat_body()), gateway.ask(chat_body(stream=True))]
        passed = gateway.ask(chat_body(n=2))
        until(lambda: resolved(gateway) == 2)
        text = gateway.get("/metrics").body.decode()
    (path,) = (tmp_path / "audits").iterdir()
    lines = path.read_text()
    assert replies[0].json["id"] in lines
    assert replies[1].events[0]["id"] in lines
    assert passed.way.startswith("passthrough")
    digest = path.name.split("-")[1]
    monitor, _ = replay(find_series([path], digest))
    assert monitor.counts["requests"] == monitor.counts["stopped"] == 2
    assert 0 < monitor.counts["audit_tokens"] <= 2 * (LENGTH - STOP + VISIBLE)
    assert f'stopadvisor_audit_e_value{{digest="{digest}",watch="differs"}}' in text
    assert "stopadvisor_audits_total" in text


@dataclass
class SampledStory(Story):
    """Each draw from the prompt alone finds another answer."""

    draws: int = 0

    def after(self, generated: Sequence[int]) -> list[int]:
        if not generated:
            self.draws += 1
            self.visible = f"Final answer: {self.draws}"
        self.forced = lambda _: f" {self.draws}\n"
        return super().after(generated)


def test_a_sampled_trace_is_compared_with_its_own_end_and_not_with_another_draw(
    policy: Path, tmp_path: Path
) -> None:
    with (
        odd_server(story=SampledStory()) as server,
        running(policy, server, audit=audit(tmp_path)) as gateway,
    ):
        (auditor,) = gateway.gateway.auditors._by_digest.values()
        for number in range(1, 5):
            gateway.ask(chat_body())
            until(partial(_are_resolved, gateway, number))
        assert auditor.log.monitor.counts["stopped"] == 4
        assert auditor.log.monitor.counts["differing"] == 0


def _are_resolved(gateway: RunningGateway, number: int) -> bool:
    return resolved(gateway) == number


def test_audits_make_room_for_requests(server: OddServer, policy: Path, tmp_path: Path) -> None:
    with running(policy, server, audit=audit(tmp_path), concurrency=1) as gateway:
        (auditor,) = gateway.gateway.auditors._by_digest.values()

        async def begin() -> None:
            async def never() -> FullThinking:
                await asyncio.sleep(3_600)
                raise AssertionError

            auditor.served(AuditedReply("held", 4, "5", "numeric", 10, 10), never)
            assert auditor._running

        asyncio.run_coroutine_threadsafe(begin(), gateway.loop).result(5)
        server.holds = "silent-thinking"
        clients = [gateway.send(chat_body()) for _ in "ab"]
        until(lambda: auditor.log.monitor.counts["shed"] == 1)
        until(lambda: not auditor._running)
        for client in clients:
            client.close()


def test_what_is_replaced_is_closed_after_its_last_audit() -> None:
    happened: list[str] = []

    async def close() -> None:
        happened.append("closed")

    async def think(bound: Bound[str]) -> None:
        with bound.used():
            for _ in range(3):
                await asyncio.sleep(0)
            happened.append("audited")

    async def go() -> None:
        bound = Bound("service", close)
        with bound.used():
            await bound.retire()
            audit = asyncio.create_task(think(bound))
        await audit
        await asyncio.sleep(0)

    asyncio.run(go())
    assert happened == ["audited", "closed"]


def test_a_second_signal_gives_open_audits_no_more_time(
    server: OddServer, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, given = [100.0], list[float]()
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("stopadvisor.serving.gateway.server.time", clock)

    async def drain(_: Auditors, seconds: float) -> None:
        given.append(seconds)

    monkeypatch.setattr(Auditors, "drain", drain)
    with running(policy, server, audit=audit(tmp_path), grace=8.0) as gateway:

        def twice() -> None:
            gateway.gateway.leave()
            now[0] += 5.0
            gateway.gateway.leave()

        gateway.loop.call_soon_threadsafe(twice)
        until(lambda: bool(given))
    assert given == [3.0]


def test_an_alarm_ends_the_stopping_until_it_is_reset(
    server: OddServer, policy: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "audits"
    settings = audit(folder, on_alarm="shadow")
    with running(policy, server, audit=settings) as gateway:
        for number in range(1, 40):
            if gateway.ask(chat_body()).way.startswith("shadow"):
                break
            until(lambda number=number: resolved(gateway) == number)  # type: ignore[misc]
        assert gateway.ask(chat_body()).way == "shadow; reason=covered"
        reset(find_series([folder], next(folder.iterdir()).name.split("-")[1]), "A. Smith")
        assert gateway.ask(chat_body()).way == "policy; reason=covered"


def ask_until_it_ends(gateway: RunningGateway) -> None:
    """Send audited requests until an alarm ends the gateway."""
    for number in range(1, 40):
        gateway.ask(chat_body())
        until(lambda number=number: resolved(gateway) >= number)  # type: ignore[misc]
        if gateway.gateway.exit_code:
            break
    assert gateway.gateway.exit_code == 8


def test_a_refused_reload_acts_on_no_alarm_of_what_it_refused(
    server: OddServer, policy: Path, policies: Path, tmp_path: Path
) -> None:
    """An earlier alarm of a policy that is not in use ends no gateway."""
    settings, served = audit(tmp_path / "audits", on_alarm="exit"), tmp_path / "served"
    served.mkdir()
    with running(policy, server, audit=settings) as gateway:
        ask_until_it_ends(gateway)
    shutil.copy(policies / "never.json", served / "one.json")
    with running(served, server, audit=settings) as gateway:
        shutil.copy(policy, served / "one.json")
        unserved = load_policy(policy).content["model"] | {"name": "unserved"}
        save_changed(policy, served / "two.json", model=unserved)
        gateway.reload()
        assert gateway.lines[-1]["event"] == "reload-refused"
        assert (gateway.gateway.exit_code, gateway.gateway.draining) == (0, False)


def test_an_alarm_that_is_still_on_keeps_a_gateway_from_starting(
    server: OddServer, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so in its log, a JSON object a line."""
    monkeypatch.setattr("stopadvisor.serving.gateway.server.Metrics", lambda: Metrics(Registry()))
    settings, logged = audit(tmp_path / "audits", on_alarm="exit"), io.StringIO()
    with running(policy, server, audit=settings) as gateway:
        ask_until_it_ends(gateway)
        again = replace(gateway.gateway.settings, port=free_port())
    assert serve(again, logged) == 8
    lines = [json.loads(line) for line in logged.getvalue().splitlines()]
    assert lines[-1]["event"] == "alarm"
    assert lines[-1]["code"] == 8
    assert lines[0]["event"] == "audit"
    assert lines[0]["message"].startswith("ALARM (")
