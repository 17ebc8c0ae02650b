"""The gateway's parts without a socket: its pool, its queue, its policies and its limits."""

from __future__ import annotations

import asyncio
import io
import json
import resource
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.routing import Router

from stopadvisor.engines.http.client import Unreachable
from stopadvisor.engines.openai.early_exit import PolicyService
from stopadvisor.ground.errors import EngineError, ModelError, StopAdvisorError
from stopadvisor.policy.requests import Climbed, RungAnswer
from stopadvisor.policy.rung_policies import read_rungs
from stopadvisor.runs.ladder import Rung
from stopadvisor.serving.audits import AuditedReply
from stopadvisor.serving.gateway import server
from stopadvisor.serving.gateway.app import as_reference, audited_climb, note_climb
from stopadvisor.serving.gateway.forward import proxy_of
from stopadvisor.serving.gateway.intake import Admission, Intake, Refusal
from stopadvisor.serving.gateway.policies import Bound, PolicySet, ServedPolicy, entries
from stopadvisor.serving.gateway.pool import Pool, Upstream
from stopadvisor.serving.metrics import Log, Metrics, RequestRecord
from stopadvisor.serving.serve_settings import GatewaySettings, Timeouts
from tests.engines.rung_server import ladder_toml
from tests.policy_content import (
    GIVES_UP,
    SERVED_RUNGS,
    example_content,
    ladder_content,
    policy_from,
)
from tests.serving.gateways import PATIENCE
from tests.serving.test_gateway_ladder import policy_of
from tests.serving.virtual_server import run_virtually

# --- The pool -------------------------------------------------------------------------------------


async def _never(upstream: Upstream) -> bool:
    raise AssertionError


def pool_of(
    log: io.StringIO,
    *,
    check: Callable[[Upstream], Awaitable[Any]] = _never,
    glance: Callable[[Upstream], Awaitable[Any]] = _never,
    every: float = 10.0,
) -> Pool:
    metrics = Metrics(CollectorRegistry())
    names = ["http://a/v1", "http://b/v1"]
    return Pool(names, check=check, glance=glance, every=every, metrics=metrics, log=Log(log))


def taken_out(log: io.StringIO) -> list[str]:
    """Why servers were taken out of use."""
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    return [line["reason"] for line in lines if line["event"] == "upstream-down"]


def test_a_request_goes_to_the_first_of_the_least_busy_that_is_not_in_doubt() -> None:
    log = io.StringIO()
    pool = pool_of(log)
    first, second = pool.all
    assert (pool.pick([]), pool.is_ready) == (None, False)
    first.is_up = second.is_up = True
    assert (pool.pick([]), pool.is_ready) == (first, True)
    assert (pool.pick([first]), pool.pick([first, second])) == (second, None)
    with pool.at(first):
        assert (first.in_flight, pool.pick([])) == (1, second)
    assert first.in_flight == 0
    for _ in range(2):
        pool.failed(first)
    assert (pool.pick([]), first.changed.is_set()) == (first, False)
    pool.failed(first)
    assert first.changed.is_set()
    with pool.at(second):
        assert pool.pick([]) is second
    assert taken_out(log) == []
    for _ in range(2):
        pool.failed(second, gone=True)
    assert pool.pick([]) is first
    assert taken_out(log) == ["unreachable"]


def test_a_server_that_is_down_is_checked_more_and_more_seldom() -> None:
    times: list[float] = []

    async def check(upstream: Upstream) -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 9:
            raise asyncio.CancelledError
        raise EngineError("down")

    async def supervised() -> None:
        pool = pool_of(io.StringIO(), check=check)
        with suppress(asyncio.CancelledError):
            await pool.supervise(pool.all[0])

    run_virtually(supervised())
    assert times == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 61.5, 91.5]


def test_a_server_in_use_is_looked_at_and_checked_where_something_is_wrong() -> None:
    times: list[float] = []
    log = io.StringIO()
    glances: Iterator[bool | Exception] = iter(
        [True, False, EngineError("gone"), *(TimeoutError() for _ in range(3))]
    )

    async def check(upstream: Upstream) -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 4:
            raise EngineError("down")
        if len(times) == 5:
            raise asyncio.CancelledError

    async def glance(upstream: Upstream) -> bool:
        found = next(glances)
        if isinstance(found, Exception):
            raise found
        return found

    async def supervised() -> None:
        pool = pool_of(log, check=check, glance=glance)
        pool.all[0].failures = 2
        with suppress(asyncio.CancelledError):
            await pool.supervise(pool.all[0])

    run_virtually(supervised())
    # One glance every 10 s; after three that were not answered in time, half a second's rest.
    assert times == [0.0, 20.0, 30.0, 60.5, 61.0]
    assert taken_out(log) == ["changed", "unreachable", "failing"]


DOWN, OTHER = Unreachable("down"), ModelError("another model")


@pytest.mark.parametrize(
    ("checks", "ends", "error"),
    [
        ([[(0.0, None)], [(3.0, None)]], 3.0, None),
        ([[(0.0, None)], [(3.0, DOWN)]], 3.0, None),
        ([[(0.0, DOWN)], [(0.0, DOWN), (0.0, DOWN), (0.0, None)]], 1.5, None),
        ([[(0.0, None)], [(3.0, OTHER)]], 3.0, OTHER),
        ([[(0.0, DOWN), (0.0, OTHER)], [(0.0, None)]], 0.0, None),
        ([[(0.0, DOWN)], [(0.0, DOWN)]], 8.0, DOWN),
        ([[(9.0, None)], [(9.0, None)]], 8.0, EngineError("no answer for 8 s from http://a/v1, ")),
    ],
)
def test_a_gateway_is_ready_once_each_server_was_checked_and_one_is_up(
    checks: list[list[tuple[float, Exception | None]]], ends: float, error: Exception | None
) -> None:
    """A server with another model ends the wait; the last check of a list is repeated."""

    async def check(upstream: Upstream) -> None:
        mine = checks[upstream.number]
        seconds, found = mine.pop(0) if len(mine) > 1 else mine[0]
        await asyncio.sleep(seconds)
        if found is not None:
            raise found

    async def waited() -> tuple[float, Exception | None]:
        pool, raised = pool_of(io.StringIO(), check=check, every=100.0), None
        tasks = [asyncio.create_task(pool.supervise(upstream)) for upstream in pool.all]
        try:
            await pool.wait_ready(8.0)
        except StopAdvisorError as found:
            raised = found
        for task in tasks:
            task.cancel()
        return asyncio.get_running_loop().time(), raised

    seconds, raised = run_virtually(waited())
    assert seconds == ends
    assert type(raised) is type(error)
    assert str(raised).startswith(str(error))


# --- Bodies ---------------------------------------------------------------------------------------

MIB = 2**20


@pytest.mark.parametrize(
    ("pieces", "held", "seconds", "status"),
    [
        ([(0.0, 0)], 0, 0.0, None),
        ([(59.0, 1)] * 10, 0, 590.0, None),
        ([(0.0, 1), (61.0, 1)], 0, 60.0, 408),
        ([(61.0, 1)], 0, 60.0, 408),
        ([(50.0, 1)] * 20, 0, 600.0, 408),
        ([(0.0, 64 * MIB)], 192 * MIB, 0.0, None),
        ([(0.0, 64 * MIB), (1.0, 1)], 0, 1.0, 413),
        ([(0.0, 1), (1.0, MIB)], 255 * MIB, 1.0, 429),
    ],
)
def test_a_body_has_to_come_in_time_and_to_find_room(
    pieces: list[tuple[float, int]], held: int, seconds: float, status: int | None
) -> None:
    """60 s for a piece, ten minutes for all; 64 MiB, and 256 MiB with all others."""
    left, intake = list(pieces), Intake(Timeouts())
    intake._held += held

    async def receive() -> dict[str, Any]:
        pause, size = left.pop(0)
        await asyncio.sleep(pause)
        return {"type": "http.request", "body": bytes(size), "more_body": bool(left)}

    async def take() -> tuple[float, int | None]:
        scope = {"method": "POST", "path": "/v1/odd", "headers": []}
        refused = None
        try:
            async with intake.request(scope, receive) as request:
                assert len(request.body) == sum(size for _, size in pieces)
                assert intake._held == held + len(request.body)
                assert (request.target.path, request.streams) == ("/odd", False)
        except Refusal as no:
            refused = no.status
        return asyncio.get_running_loop().time(), refused

    assert run_virtually(take()) == (seconds, status)
    assert intake._held == held


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"raw_path": b"/v1/a%2Fb", "query_string": b"c=%2f&d"}, ("/a%2Fb", "c=%2f&d")),
        ({"path": "/v1/models"}, ("/models", "")),
        ({"raw_path": b"/%761/models"}, 404),
        ({"raw_path": b"/v2/models"}, 404),
        ({"raw_path": b"/v1/caf\xc3\xa9"}, 404),
        ({"query_string": b"\xe9"}, 404),
        ({"raw_path": b"/v1/%2e%2e/models"}, 404),
        ({"method": "TRACE"}, 405),
        ({"method": "CONNECT"}, 405),
        ({"method": "DELETE"}, ("/models", "")),
    ],
)
def test_a_path_is_taken_as_it_was_sent(
    fields: dict[str, Any], found: tuple[str, str] | int
) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def take() -> tuple[str, str] | int:
        scope = {"method": "POST", "path": "/v1/models", "headers": [], **fields}
        try:
            async with Intake(Timeouts()).request(scope, receive) as request:
                return request.target.path, request.target.query
        except Refusal as no:
            return no.status

    assert asyncio.run(take()) == found


# --- The queue ------------------------------------------------------------------------------------


def test_two_requests_wait_for_each_place_and_no_more() -> None:
    made_room: list[bool] = []

    async def queued() -> None:
        metrics, go, order = Metrics(CollectorRegistry()), asyncio.Event(), list[str]()
        admission = Admission(2, metrics, lambda: made_room.append(True))
        records = [RequestRecord(str(k)) for k in range(6)]

        async def ask(record: RequestRecord) -> None:
            async with admission.place(record):
                order.append(record.id)
                await go.wait()

        tasks = []
        for record in records:
            tasks.append(asyncio.create_task(ask(record)))
            await asyncio.sleep(0)
            assert admission.is_crowded == (len(tasks) > 2)
        assert (order, len(made_room)) == (["0", "1"], 4)
        with pytest.raises(Refusal) as full:
            await ask(RequestRecord("7"))
        assert (full.value.status, full.value.headers) == (429, [(b"retry-after", b"5")])
        go.set()
        await asyncio.gather(*tasks)
        assert (order, admission.is_crowded) == ([record.id for record in records], False)
        assert all(0 <= record.queue_seconds < 60 for record in records)
        assert b"stopadvisor_requests_waiting 0.0" in metrics.text()[0]

    asyncio.run(queued())


# --- Policies at an upstream ----------------------------------------------------------------------


@pytest.mark.parametrize("climbs", [False, True], ids=["policy", "ladder"])
def test_a_check_is_not_held_by_a_silent_upstream(
    policies: Path, tmp_path: Path, climbs: bool
) -> None:
    """It accepts connections and says nothing; a whole reply may take ten minutes."""
    ladder, policy = None, policies / "stops.json"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        if climbs:
            policy = policy_of(tmp_path)
            ladder = read_rungs(Path(ladder_toml(tmp_path / "ladder.toml", SERVED_RUNGS, url)))
        limits = Timeouts(first=0.1, total=10 * PATIENCE)
        settings = GatewaySettings(policy, upstreams=(url,), ladder=ladder, timeouts=limits)
        check = PolicySet.load(settings).open_at(Upstream(0, url), retry_timeout=0.0)
        with pytest.raises(Unreachable, match="no answer"):
            asyncio.run(asyncio.wait_for(check, PATIENCE))


def test_a_replaced_policy_is_closed_after_its_last_request_and_once() -> None:
    closed: list[str] = []

    async def close() -> None:
        closed.append("closed")

    async def replaced() -> None:
        bound = Bound("service", close)
        with bound.used() as service, bound.used():
            assert service == "service"
        await asyncio.sleep(0)
        assert closed == [], "it is in use until it is replaced"
        with bound.used():
            with bound.used():
                await bound.retire()
            await asyncio.sleep(0)
            assert closed == []
        await bound.retire()
        assert closed == ["closed"]

    asyncio.run(replaced())


def test_a_list_of_models_is_read_whatever_stands_in_it() -> None:
    data = [{"id": "a", "root": "r", "max_model_len": 9}, {"id": "b"}, {"x": 1}, 7, None]
    assert entries({"data": data}, frozenset("ac")) == {"a": ("r", 9)}
    nothing: tuple[Any, ...] = ([], {"data": 3}, {}, None)
    for listed in nothing:
        assert entries(listed, frozenset("a")) == {}


@pytest.mark.parametrize(
    ("contexts", "most"),
    [((), 0), ((1000,), 16_000), ((1000, 3000), 48_000), ((None,), 4 * MIB), ((2**20,), 4 * MIB)],
)
def test_a_prompt_is_read_as_far_as_a_context_can_hold_it(
    contexts: tuple[int | None, ...], most: int
) -> None:
    """16 bytes for each token, and no more than 4 MiB; a ladder's servers count for nothing."""
    policy, settings = policy_from(example_content()), GatewaySettings(Path("p"), upstreams=())
    served = ServedPolicy(policy, "tiny", at={9: Bound("a ladder's servers", _close)})
    for number, context in enumerate(contexts):
        service = object.__new__(PolicyService)
        model = SimpleNamespace(endpoint=SimpleNamespace(context=context))
        object.__setattr__(service, "model", model)
        served.at[number] = Bound(service, _close)
    assert PolicySet((served,), settings).longest_prompt == most


async def _close() -> None:
    raise AssertionError


def _said(name: str, prompt: int, tokens: int) -> RungAnswer:
    return RungAnswer(True, "7", prompt_tokens=prompt, completion_tokens=tokens, name=name)


@pytest.mark.parametrize(
    ("asked", "at", "tokens", "visible", "prompt"),
    [
        ([_said("small", 8, 100)], 0, 100, 100, 8),
        ([_said("small", 8, 500), _said("middle", 9, 300)], 1, 800, 300, 8),
        ([_said("small", 8, 100), _said("small", 8, 200)], 0, 300, 100, 8),
        ([_said("middle", 9, 300)], 0, 300, 300, None),  # the first rung was down
        ([_said("small", 0, 100)], 0, 100, 100, None),  # its server does not say
        ([_said("small", 8, 500)], 1, 500, 0, 8),  # the reference is asked by forwarding
    ],
)
def test_an_audit_knows_a_climb_by_its_tokens_and_the_first_rungs_prompt(
    asked: list[RungAnswer], at: int, tokens: int, visible: int, prompt: int | None
) -> None:
    policy = policy_from(ladder_content(ladder={"rungs": GIVES_UP["rungs"]}))
    climbed, record = Climbed("any", tuple(asked), at=at, column=4, answer="7"), RequestRecord("r")
    note_climb(climbed, record, Metrics(CollectorRegistry()))
    assert (record.visible_tokens, record.discarded_tokens) == (visible, tokens - visible)
    assert record.prompt_tokens == (asked[at].prompt_tokens if at < len(asked) else 0)
    audited = audited_climb(climbed, policy, "numeric", record)
    assert audited == AuditedReply("r", 4, "7", "numeric", tokens, prompt)


def test_the_reference_is_asked_as_its_replies_were_recorded() -> None:
    body = {"model": "served", "messages": [1], "max_completion_tokens": 9, "user": "me"}
    rung = Rung("large", (1.0, 1.0, 1.0), model="own", max_tokens=64, temperature=0.5)
    asked = json.loads(as_reference(bytearray(json.dumps(body).encode()), rung))
    assert asked == {
        "model": "served", "messages": [1], "user": "me", "max_tokens": 64, "temperature": 0.5
    }  # fmt: skip
    endless = Rung("large", (1.0, 1.0, 1.0), reasoning_effort="high")
    asked = json.loads(as_reference(bytearray(json.dumps(body).encode()), endless))
    assert asked == body | {"reasoning_effort": "high"}


# --- Connections ----------------------------------------------------------------------------------

INF = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "upstream", "raised", "most"),
    [
        ((1024, 4096), 1024, [(4096, 4096)], 4096 - 1024 - 256),
        ((1024, 1024), 1024, [], 256),  # a quarter at least
        ((1024, INF), 10, [(65536, INF)], 65536 - 10 - 256),
        ((INF, INF), 10, [], 65536 - 10 - 256),
        ((100_000, INF), 10, [], 100_000 - 10 - 256),
        ((100_000, 200_000), 10, [], 100_000 - 10 - 256),
    ],
)
def test_clients_get_the_files_that_the_rest_leaves(
    limits: tuple[int, int],
    upstream: int,
    raised: list[tuple[int, int]],
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[tuple[int, int]] = []
    place = "stopadvisor.serving.gateway.server.resource"
    with monkeypatch.context() as patch:
        patch.setattr(f"{place}.getrlimit", lambda of: limits)
        patch.setattr(f"{place}.setrlimit", lambda of, limits: found.append(limits))
        assert server.most_connections(upstream) == most
    assert found == raised


def test_a_request_may_have_two_connections_to_its_upstream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "most_connections", lambda upstream: 1000 - upstream)
    settings = GatewaySettings(Path("policy.json"), upstreams=("http://a/v1",), concurrency=7)
    state = server.GatewayServer.of(Router(), settings).server_state
    assert isinstance(state, server.ConnectionLimit)
    assert state._most == 1000 - 14


@pytest.mark.parametrize(
    ("variables", "proxy"),
    [
        ({}, None),
        ({"http_proxy": "http://proxy:3128"}, "http://proxy:3128"),
        ({"http_proxy": "proxy:3128"}, "http://proxy:3128"),
        ({"http_proxy": "https://proxy:3128"}, None),
        ({"https_proxy": "http://proxy:3128"}, None),
        ({"http_proxy": "http://proxy:3128", "no_proxy": "host"}, None),
    ],
)
def test_the_environment_names_a_proxy(
    variables: dict[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_of("http://host:8000/v1") == proxy
