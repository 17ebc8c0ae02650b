"""Audits inside the engine: a stopped trace thinks on where it was, after everybody else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stopadvisor.ground.errors import PolicyError
from stopadvisor.serving.serve_settings import AuditSettings, ServeSettings
from stopadvisor.serving.vllm.plugin_settings import settings_of, variables_of
from tests.serving.gateways import WATCHED
from tests.serving.vllm.fake_engine import QUESTION, FakeEngine, policy_of, route_at
from tests.serving.vllm.test_route import Client


def test_a_stopped_trace_thinks_on_where_it_was(tmp_path: Path) -> None:
    engine = FakeEngine()
    policy, audit = policy_of(certificate=WATCHED), AuditSettings(1.0, tmp_path)
    route = route_at(engine, policy, audit=audit)

    async def go() -> None:
        await Client(route).ask({"model": "tiny-reasoner", "messages": QUESTION})
        await route.auditors.drain(5)

    asyncio.run(go())
    (_, ids, parameters, priority) = next(entry for entry in engine.asked if entry[0] == "audit")
    decoded = {name.split("-")[2]: tokens for name, tokens in engine.decoded.items()}
    prompt = engine.asked[0][1]
    assert ids[: len(prompt)] == prompt
    assert len(ids) == len(prompt) + decoded["think"]  # nothing is drawn twice
    assert priority > 0
    assert parameters.max_tokens < engine.asked[0][2].max_tokens
    (auditor,) = route.auditors._by_digest.values()
    counts = auditor.log.course.counts
    assert counts["audit_tokens"] == decoded["audit"]
    # 3+4: forced to 5 at the stop, 7 at the end of thinking.
    assert (counts["resolved"], counts["differing"]) == (1, 1)


def test_the_settings_go_through_the_environment(tmp_path: Path) -> None:
    audit = AuditSettings(0.02, tmp_path, on_alarm="shadow")
    settings = ServeSettings(tmp_path / "policy.joblib", audit=audit)
    assert settings_of(variables_of(settings)) == settings
    with pytest.raises(PolicyError, match="expected the settings of audits as JSON"):
        settings_of({**variables_of(settings), "STOPADVISOR_AUDIT": "{}"})
