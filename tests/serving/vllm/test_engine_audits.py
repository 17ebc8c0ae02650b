"""Audits inside the engine: a stopped trace thinks on where it was, after everybody else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from stopadvisor.ground.errors import PolicyError
from stopadvisor.serving.audits import Auditor, AuditSettings
from stopadvisor.serving.eligibility import CoveredRequest
from stopadvisor.serving.metrics import Metrics
from stopadvisor.serving.vllm.loading import EngineAudits
from stopadvisor.serving.vllm.plugin_settings import PluginSettings
from tests.serving.vllm.fake_engine import QUESTION, FakeEngine, bound_at, policy_of


def audited(
    folder: Path, engine: FakeEngine, n: int = 1, **fields: Any
) -> tuple[Auditor, list[int]]:
    """Answer `n` requests under the policy, each audited; also the codes it was to end with."""
    bound = bound_at(engine, policy_of(fields.pop("content", None)))
    settings = AuditSettings(1.0, folder, differs_limit=fields.pop("limit", 0.5), **fields)
    left: list[int] = []
    auditor = Auditor(bound.policy, settings, Metrics(CollectorRegistry()), left.append)
    audits = EngineAudits(auditor)
    found = bound.coverage.check({"model": "tiny-reasoner", "messages": QUESTION}, task=None)
    assert isinstance(found, CoveredRequest)

    async def go() -> None:
        for k in range(n):
            model = bound.model.for_request(f"chatcmpl-{k}", None)
            trace = model.begin(
                model.chat.prompt_ids(found.request.prompt.messages), found.request.prompt
            )
            live = model.live(trace, bound.policy, task=found.request.task)
            answered = await live.answer()
            audits(found, answered, model, f"chatcmpl-{k}")
            await auditor.drain(5)

    asyncio.run(go())
    return auditor, left


def test_a_stopped_trace_thinks_on_where_it_was(tmp_path: Path) -> None:
    engine = FakeEngine()
    auditor, _ = audited(tmp_path, engine)
    asked = [entry for entry in engine.asked if entry[0] == "audit"]
    thought = engine.decoded["chatcmpl-0-think"]
    (_, ids, parameters, priority) = asked[0]
    prompt = engine.asked[0][1]
    assert ids[: len(prompt)] == prompt
    assert len(ids) == len(prompt) + thought  # nothing is drawn twice
    assert priority > 0
    assert parameters.max_tokens < engine.asked[0][2].max_tokens
    counts = auditor.log.course.counts
    assert counts["audit_tokens"] == engine.decoded["chatcmpl-0-audit"]
    # 3+4: forced to 5 at the stop, 7 at the end of thinking.
    assert (counts["resolved"], counts["differing"]) == (1, 1)


def test_an_engine_that_fails_an_audit_harms_nobody(tmp_path: Path) -> None:
    auditor, _ = audited(tmp_path, FakeEngine(fails=("audit",)))
    counts = auditor.log.course.counts
    assert (counts["requests"], counts["resolved"], counts["shed"]) == (1, 0, 1)


@pytest.mark.parametrize(
    ("action", "shadowed", "left"), [("shadow", True, []), ("exit", False, [8])]
)
def test_an_alarm_acts(tmp_path: Path, action: Any, shadowed: bool, left: list[int]) -> None:
    auditor, ended = audited(tmp_path, FakeEngine(), n=12, limit=1e-6, on_alarm=action)
    assert auditor.is_shadowed() == shadowed
    assert ended[:1] == left


def test_the_settings_go_through_the_environment(tmp_path: Path) -> None:
    audit = AuditSettings(0.02, tmp_path, replica="b", on_alarm="shadow")
    settings = PluginSettings(tmp_path / "policy.joblib", audit=audit)
    assert PluginSettings.of_environment(settings.environment()) == settings
    with pytest.raises(PolicyError, match="expected the settings of audits as JSON"):
        PluginSettings.of_environment({**settings.environment(), "STOPADVISOR_AUDIT": "{}"})
