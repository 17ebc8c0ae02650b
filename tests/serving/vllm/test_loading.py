"""Policies in the engine: one for each task, and replaced while requests are answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.ground.errors import ModelError
from stopadvisor.policy.frozen import Policy, save_policy
from stopadvisor.serving.serve_settings import AuditSettings
from stopadvisor.serving.vllm import route as route_module
from stopadvisor.serving.vllm.route import PolicyRoute
from tests.engines.test_live import NEVER
from tests.serving.gateways import WATCHED
from tests.serving.vllm.fake_engine import QUESTION, FakeEngine, policy_of, route_at
from tests.serving.vllm.test_route import PASSED, Client

BODY = {"model": "tiny-reasoner", "messages": QUESTION}
STOPS, GOES_ON = policy_of(certificate=WATCHED), policy_of(certificate=WATCHED, **NEVER)


async def asked(route: PolicyRoute, **headers: str) -> tuple[str, dict[str, Any]]:
    """Return the header and the body of a reply."""
    client = Client(route)
    body = await client.ask(BODY, {n.replace("_", "-"): v for n, v in headers.items()})
    return client.header, body


async def served(path: Path, engine: FakeEngine, *policies: Policy, **options: Any) -> PolicyRoute:
    """Serve under policies, whose file or folder may change later."""
    route = route_at(engine, policies[0], path=path, **options)
    await route.use([(Path(f"{n}.joblib"), policy) for n, policy in enumerate(policies)])
    return route


@pytest.fixture(autouse=True)
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Models that went through the self-test, which a story does not pass."""
    models: list[Any] = []

    async def try_engine(model: Any, context: int, max_logprobs: int) -> None:
        models.append(model)

    monkeypatch.setattr(route_module, "try_engine", try_engine)
    return models


def digest(policy: Policy) -> str:
    return f"digest={policy.digest[:8]}"


def run(work: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60))


def test_the_header_chooses_among_policies_of_one_model(tmp_path: Path) -> None:
    numeric, choice = policy_of(task="numeric"), policy_of(task="choice")

    async def go() -> None:
        both = await served(tmp_path, FakeEngine(), numeric, choice)
        for policy in (numeric, choice):
            header, body = await asked(both, X_StopAdvisor_Task=policy.terms.task)
            assert header == f"policy; reason=covered; {digest(policy)}"
            assert body["usage"]["stopadvisor"]["budget"] == 4
        for headers in ({}, {"X_StopAdvisor_Task": "math"}):
            assert await asked(both, **headers) == ("passthrough; reason=task; digest=none", PASSED)
        alone = await served(tmp_path, FakeEngine(), numeric)
        assert (await asked(alone))[0] == f"policy; reason=covered; {digest(numeric)}"

    run(go)


def test_policies_are_replaced_and_taken_back(tmp_path: Path, tried: list[Any]) -> None:
    path = tmp_path / "policy.joblib"
    engine = FakeEngine()

    async def go() -> None:
        found = await served(path, engine, STOPS)
        for policy, budget in ((GOES_ON, None), (STOPS, 4)):
            save_policy(policy, path)
            await found.reload()
            header, body = await asked(found)
            assert header == f"policy; reason=covered; {digest(policy)}"
            assert body["usage"]["stopadvisor"]["budget"] == budget

    run(go)
    assert len(tried) == 3


@pytest.mark.parametrize("fault", ["no policy", "another model", "the self-test"])
def test_what_is_refused_leaves_the_policies_in_use(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "policy.joblib"
    save_policy(GOES_ON, path)
    if fault == "no policy":
        path.write_bytes(b"something else")
    elif fault == "another model":
        other = {**STOPS.content["model"], "revision": "sha256:" + "0" * 64}
        save_policy(policy_of(model=other), path)

    async def fails(*_: Any) -> None:
        raise ModelError("this vLLM does not pass")

    async def go() -> None:
        found = await served(path, FakeEngine(), STOPS)
        if fault == "the self-test":
            monkeypatch.setattr(route_module, "try_engine", fails)
        with caplog.at_level(logging.ERROR, "vllm.stopadvisor"):
            await found.reload()
        assert (await asked(found))[0].endswith(digest(STOPS))

    run(go)
    (record,) = (one for one in caplog.records if one.levelno == logging.ERROR)
    assert record.getMessage().startswith("reload refused, the policies in use stay: ")


def test_a_request_ends_under_the_policy_it_began_with(tmp_path: Path) -> None:
    path = tmp_path / "policy.joblib"
    save_policy(GOES_ON, path)
    engine = FakeEngine(pace=0.005)

    async def go() -> None:
        found = await served(path, engine, STOPS)
        asking = asyncio.create_task(asked(found))
        while not engine.running:
            await asyncio.sleep(0.001)
        await found.reload()
        header, body = await asking
        assert header.endswith(digest(STOPS))
        assert body["usage"]["stopadvisor"]["budget"] == 4
        assert (await asked(found))[0].endswith(digest(GOES_ON))

    run(go)


def test_a_policy_that_comes_back_goes_on_with_its_audits(tmp_path: Path) -> None:
    path = tmp_path / "policy.joblib"
    audit = AuditSettings(1.0, tmp_path / "audits")

    async def go() -> None:
        found = await served(path, FakeEngine(), STOPS, audit=audit)
        for policy in (GOES_ON, STOPS):
            await asked(found)
            save_policy(policy, path)
            await found.reload()
        await asked(found)
        auditors = found.auditors._by_digest
        requests = {name: a.log.course.counts["requests"] for name, a in auditors.items()}
        assert requests == {STOPS.digest: 2, GOES_ON.digest: 1}
        for auditor in auditors.values():
            await auditor.drain(5)

    run(go)
    assert len(list((tmp_path / "audits").iterdir())) == 2
